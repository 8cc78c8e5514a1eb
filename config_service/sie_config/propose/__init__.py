"""A model's spec, proposed from the files that its publisher wrote: every fact with its source, every doubt told. Pure.

`proposal.spec` makes it of a `Folder`; `written.document` writes it as YAML. Reading a folder of this machine is
``local``, the Hugging Face Hub is read by whoever may use its library (``sie_bundle``).
"""

from __future__ import annotations

from sie_config.propose.draft import Doubt
from sie_config.propose.folder import Folder, Tensor, wanted
from sie_config.propose.proposal import Proposal, spec

__all__ = ["Doubt", "Folder", "Proposal", "Tensor", "spec", "wanted"]
