"""`sie completion`: the script a shell completes `sie` with, and the completion of model names from the server."""

from __future__ import annotations

from collections import Counter

import click
from click.shell_completion import CompletionItem, get_completion_class

from sie_sdk.errors import SIEError

TIMEOUT_S = 1.0
"""A shell that waits for its server longer than this seems stuck."""

VARIABLE = "_SIE_COMPLETE"


@click.command(short_help="Let your shell complete commands, options and model names.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options and model names.

    Model names come from the server (SIE_BASE_URL); when it does not answer within a second, none are offered.

    \b
    Examples:
      source <(sie completion bash)                              bash, until the shell ends
      echo 'source <(sie completion bash)' >> ~/.bashrc          bash, for good
      echo 'source <(sie completion zsh)' >> ~/.zshrc            zsh, below compinit
      sie completion fish > ~/.config/fish/completions/sie.fish  fish
    """
    made = get_completion_class(shell)
    assert made is not None
    root = click.get_current_context().find_root().command
    click.echo(made(root, {}, "sie", VARIABLE).source())


def model_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The server's models that begin so: with their organisation, or where it is not typed and not needed, without."""
    from sie_sdk.client import SIEClient

    url, key, tenant = (ctx.params.get(name) for name in ("url", "api_key", "tenant"))
    try:
        with SIEClient(url, api_key=key, tenant=tenant, timeout_s=TIMEOUT_S) as client:
            names = [name for model in client.list_models() for name in (model.name, *model.aliases)]
    except SIEError:
        return []
    return [CompletionItem(name) for name in matching(names, incomplete)]


def matching(names: list[str], incomplete: str) -> list[str]:
    """Which of ``names`` may be meant by their beginning, whatever its case."""
    begun = incomplete.lower()
    whole = [name for name in names if name.lower().startswith(begun)]
    if whole or not begun:
        return whole
    bare = [name.rpartition("/")[2] for name in names]
    count = Counter(name.lower() for name in bare)
    return [name for name in bare if name.lower().startswith(begun) and count[name.lower()] == 1]
