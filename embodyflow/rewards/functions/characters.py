"""Characters that models write in place of those of ASCII."""

import re
import unicodedata

PLAIN = str.maketrans(
    {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full width, as in Chinese text
    | dict.fromkeys("−–‐‑‒﹣˗➖", "-")
    | dict.fromkeys("⁄∕", "/")
)
"""Translation of full-width characters, minus signs and slashes."""

_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-", strict=True))
_POWER = re.compile(f"[{re.escape(''.join(_RAISED))}]+")
_FRACTIONS = {
    chr(code): tuple(parts)
    for code in (0xBC, 0xBD, 0xBE, *range(0x2150, 0x215F))
    if len(parts := unicodedata.normalize("NFKC", chr(code)).split("⁄")) == 2 and all(parts)
}

COUNTED_WITH_NUMBER = "".join([*_RAISED, *_FRACTIONS])
"""Powers and fractions, which change the value of a number before them."""


def with_plain_digits(text: str) -> str:
    """Return a text with plain characters, and with the decimal digits of all scripts as those of ASCII."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(each, each)) for each in text.translate(PLAIN))


def as_latex(text: str) -> str:
    """Return a text with powers such as ``⁻²`` and fractions such as ``¾`` as LaTeX, and plain characters."""
    if text.isascii():
        return text
    text = _POWER.sub(lambda found: _power("".join(_RAISED[each] for each in found[0])), text.translate(PLAIN))
    for character, (top, bottom) in _FRACTIONS.items():
        text = text.replace(character, rf"\frac{{{top}}}{{{bottom}}}")
    return text


def _power(digits: str) -> str:
    return f"^{digits}" if len(digits) == 1 else f"^{{{digits}}}"
