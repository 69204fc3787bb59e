"""What the commands say of themselves and of words they do not know, where typer's own words would not help.

Everything else about options and arguments is typer's.
"""

from collections.abc import Sequence
from typing import Any

import typer

from prima_bench.tasks.errors import UsageError, nearest_names


class Command(typer.core.TyperCommand):
    """A command whose help names its arguments as its examples do, without their Python types."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The parts of the usage line."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write what is known of the arguments and the options."""
        arguments = [p for p in self.params if isinstance(p, typer.core.TyperArgument) and p.help]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([(p.display_name_raw, str(p.help)) for p in arguments])
        with formatter.section("Options"):
            records = [p.get_help_record(ctx) for p in self.get_params(ctx) if p.param_type_name == "option"]
            formatter.write_dl([record for record in records if record])


class Group(typer.core.TyperGroup):
    """A command made of commands, which knows what may have been meant by a word that is none of them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the next word names.

        Raises:
            UsageError: If there is none of that name.
        """
        word = args[0]
        if word.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, word) is not None:
            return super().resolve_command(ctx, args)
        raise UsageError(f"{ctx.command_path} has no command {word!r}", hint=self.meant_by(word, ctx))

    def meant_by(self, word: str, ctx: Any) -> str:
        """A hint for somebody who typed a word that is no command."""
        return f"Nearest: {', '.join(nearest_names(word, self.commands))}. See {ctx.command_path} --help."


def complaint(error: typer.TyperException) -> Sequence[str]:
    """What typer refuses, as a message and a hint; the help alone for somebody who typed nothing more."""
    message, context = error.format_message().replace("Value error, ", ""), getattr(error, "ctx", None)
    if context is None:
        return [f"error: {message}"]
    if message == context.get_help():
        return [message]
    see = f"See {context.command_path} --help."
    typed = getattr(error, "option_name", None)
    if typed is None or not hasattr(error, "possibilities"):
        return [f"error: {message}", f"hint: {see}"]
    known = [name for p in context.command.get_params(context) for name in p.opts if name.startswith("--")]
    near = f"Nearest: {', '.join(nearest_names(typed, known))}."
    if isinstance(context.command, Group):
        near = "Options follow the command that they are for."
    return [f"error: {context.command_path} has no option {typed}", f"hint: {near} {see}"]
