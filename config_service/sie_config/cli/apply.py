"""``sie config validate``, ``diff`` and ``apply``: a folder of specs in git is the catalogue, or a part.

Owns their arguments, exit codes and what they say. The service makes the plan: a dry run of what would be sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import msgspec

from sie_config.cli import folder, plan
from sie_config.cli.service import EPOCH, ConfigService, asks_config, model_path
from sie_config.deployment import bundle_spec, placement
from sie_config.model import model_spec, validation
from sie_sdk.cli import exits
from sie_sdk.cli.seconds import Seconds
from sie_sdk.cli.server import as_json
from sie_sdk.errors import DeadlineExceededError, SIEError

APPLY = "/v1/configs/apply"
DIFFERS = 2
"""The exit code of ``diff`` where there is a difference; what goes wrong there is 1, for this is for programs."""
LOOK_S = 0.2

_paths = click.argument("paths", nargs=-1, required=True, metavar="DIR...", type=click.Path(allow_dash=True))


def _ownership(command: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        click.option("--adopt", is_flag=True, help="Take over models that another owner applied."),
        click.option("--prune", is_flag=True, help="Delete the owner's models that are not in DIR."),
        click.option("--owner", metavar="NAME", default="", help="Whose models these are, for --prune."),
    ):
        command = decorate(command)
    return command


class _ForPrograms(click.Command):
    """Its 2 has a meaning of its own, so that nothing else may end with it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.show()
            raise click.exceptions.Exit(1) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SIEError as error:
            if exits.code(error) != DIFFERS:
                raise
            exits.tell(error)
            ctx.exit(1)


@click.command()
@_paths
@as_json
def validate(paths: Sequence[str], as_json: bool) -> None:
    """Check the specs of each DIR (a folder, a file, or - for standard input) without asking any server.

    Faults end with exit code 2; warnings are said, and no more.

    \b
    Examples:
      sie config validate models/
      sie config show bge-m3 | sie config validate -
    """
    written = folder.read(paths)
    for each in written if as_json else ():
        row = {"file": each.name, "id": each.document.get("id"), "faults": msgspec.to_builtins(each.faults)}
        click.echo(msgspec.json.encode(row))
    documents = folder.specs(paths) if not as_json or any(each.faults for each in written) else []
    families = {family for bundle in bundle_spec.load() for family in bundle.families}
    for document in documents:
        spec = model_spec.parse(document, origin=str(document["id"]))
        for warning in (*validation.warnings(spec, families), *placement.unknown_names(spec)):
            click.secho(f"Warning: {spec.id}: {warning}", fg="yellow", err=True)
    if not as_json:
        click.echo(f"{len(documents)} spec{'' if len(documents) == 1 else 's'}, no faults.")


@click.command(cls=_ForPrograms)
@_paths
@_ownership
@as_json
@asks_config
def diff(service: ConfigService, paths: Sequence[str], owner: str, prune: bool, adopt: bool, as_json: bool) -> None:
    """Show what `sie config apply` would change. Exit code 0: nothing; 2: something; 1: it cannot be told.

    DIR is a folder, a file, or - for standard input.

    \b
    Examples:
      sie config diff models/
      sie config diff models/ --owner team-search --prune
      sie config diff models/ --json | jq -r '.changes[].model'
    """
    answer = _dry_run(service, paths, owner, prune, adopt)
    if as_json:
        click.echo(msgspec.json.encode(answer))
    else:
        plan.show(answer["changes"])
        plan.warn(answer)
        click.echo(plan.summary(answer))
    click.get_current_context().exit(DIFFERS if answer["changes"] else 0)


@click.command()
@_paths
@_ownership
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@plan.note("Why, for the history: a commit, say.")
@click.option(
    "--wait", "wait_s", type=Seconds(min=0), default=0.0, metavar="SECONDS", help="Until it is served everywhere."
)
@as_json
@asks_config
def apply(
    service: ConfigService,
    paths: Sequence[str],
    owner: str,
    prune: bool,
    adopt: bool,
    yes: bool,
    note: str,
    wait_s: float,
    as_json: bool,
) -> None:
    """Make the catalogue what the specs of each DIR say: all of it in one epoch, or nothing.

    Shows what it would change and asks. What was written by others stays; with --prune, models that this owner applied
    before and that are no longer in DIR are deleted.

    \b
    Examples:
      sie config apply models/
      sie config apply models/ --owner team-search --prune --yes --note "$GITHUB_SHA" --wait 60
      sie config show bge-m3 | sie config apply - --yes
    """
    specs = folder.specs(paths)
    wanted = {"models": specs, "owner": owner, "prune": prune, "adopt": adopt}
    if wait_s:
        service.served(EPOCH)  # a server that cannot be asked who serves it is told of before anything is written
    planned = service.write("POST", APPLY, wanted, dry_run=True)
    if not (as_json and yes):
        plan.show(planned["changes"], err=as_json)
        plan.warn(planned)
        click.echo(plan.summary(planned), err=as_json)
    if planned["changes"]:
        seen = {} if yes else service.as_planned(planned)
        plan.confirmed("Apply this?", yes)
        answer = service.write("POST", APPLY, wanted, note=note, headers=seen)
    else:
        answer = planned
    changed = [each["model"] for each in answer["changes"] if each["action"] != "deleted"]
    click.echo(msgspec.json.encode(answer) if as_json else plan.done(answer))
    if wait_s:
        wait_until_served(service, changed, answer["epoch"], wait_s)


def wait_until_served(service: ConfigService, models: Sequence[str], epoch: int, within_s: float) -> None:
    """Return when every ingress and worker has applied these models as that epoch wrote them.

    A server that cannot say it, an ingress that does not know the model yet for instance, is asked again.

    Raises:
        DeadlineExceededError: one has not within ``within_s`` seconds, and which; or nobody said so.
    """
    end, waiting = time.monotonic() + within_s, list(models)
    while waiting:
        why = ""
        try:
            status = service.served(f"{model_path(waiting[0])}/status", max(LOOK_S, end - time.monotonic()))
        except SIEError as error:
            status, why = {}, f" {error.message}"
        if status.get("config_epoch", -1) >= epoch and _everywhere(status):
            waiting.pop(0)
        elif time.monotonic() + LOOK_S > end:
            raise DeadlineExceededError(
                f"{waiting[0]} is written, and after {within_s:g} s not known to be served everywhere.{why}",
                hint=f"sie config status {waiting[0]} says by whom.",
            )
        else:
            time.sleep(LOOK_S)


def _everywhere(status: Mapping[str, Any]) -> bool:
    return status["all_bundles_acked"] and all(each["acked"] for each in status["ingresses"])


def _dry_run(service: ConfigService, paths: Sequence[str], owner: str, prune: bool, adopt: bool) -> Any:
    wanted = {"models": folder.specs(paths), "owner": owner, "prune": prune, "adopt": adopt}
    return service.write("POST", APPLY, wanted, dry_run=True)
