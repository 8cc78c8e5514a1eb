"""The clients as parts of LangChain, LlamaIndex and Haystack: a module for each, and an extra that installs it.

Owns the error of a framework that is not there. This package imports none of them; its modules ``langchain``,
``llamaindex`` and ``haystack`` import their own.
"""

from __future__ import annotations

from sie_sdk import extras


def absent(framework: str, extra: str, error: ImportError) -> ImportError:
    """The error of an import that failed, with how to install what is missing."""
    fault = "is not installed" if isinstance(error, ModuleNotFoundError) else "is of a version that does not fit"
    return ImportError(f"{framework} {fault} ({error}). Install it with: {extras.install(extra)}", name=error.name)
