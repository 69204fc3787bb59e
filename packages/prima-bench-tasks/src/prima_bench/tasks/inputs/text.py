"""Which strings are names that every file and every digest can hold."""

from collections.abc import Iterable

from prima_bench.tasks.errors import PrimaBenchError, first_few


def is_text(string: str) -> bool:
    r"""Whether a string can be written as UTF-8 and holds no NUL, which ends strings in files.

    >>> is_text("CD4+ T"), is_text("\ud800"), is_text("a\0b")
    (True, False, False)
    """
    return "\0" not in string and (string.isascii() or not any("\ud800" <= c <= "\udfff" for c in string))


def refuse_no_text(strings: Iterable[str], what: str, error: type[PrimaBenchError]) -> None:
    """Raise if a string is no text.

    Args:
        strings: The strings.
        what: What they are called in messages, in the plural (``"ids"``).
        error: What to raise.

    Raises:
        PrimaBenchError: Naming the first few.
    """
    if odd := [s for s in strings if not is_text(s)]:
        raise error(
            f"{what} hold characters that no file can: {first_few(odd)}",
            hint="Remove NUL characters and lone surrogates, which come from bytes that were decoded wrongly.",
        )
