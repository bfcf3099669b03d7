"""Normalization of LaTeX answers as text: one spelling for each of the ways to write the same thing."""

import re
from functools import lru_cache

from embodyflow.rewards.functions.characters import as_latex

_INTEGER = re.compile(r"-?[1-9]\d*", re.ASCII)
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_UNICODE = str.maketrans(
    {
        "×": r"\times ",
        "·": r"\cdot ",
        "÷": r"\div ",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "°": r"^\circ ",
        "√": r"\sqrt ",
        "∪": r"\cup ",
        "∈": r"\in ",
        "∩": r"\cap ",
        "∅": r"\emptyset ",
        "ℝ": r"\mathbb{R}",
        "ℤ": r"\mathbb{Z}",
        "→": r"\to ",
        "±": r"\pm ",
        "\u00a0": " ",
        "\u2009": r"\,",
        "\u202f": r"\,",
    }
)
_ALIASES = (
    (re.compile(r"\\varnothing(?![a-zA-Z])|\\\{\s*\\\}"), r"\\emptyset "),
    (re.compile(r"\\(?:lvert|rvert|vert)(?![a-zA-Z])"), "|"),
    (re.compile(r"\\(?:long)?rightarrow(?![a-zA-Z])"), r"\\to "),
    (re.compile(r"\\[cl]dots(?![a-zA-Z])"), r"\\dots "),
    (re.compile(r"\\mathbb\s+([A-Z])(?![a-zA-Z])"), r"\\mathbb{\1}"),
)
"""Commands that print the same, with a template of the spelling that stands for all of them."""
_SIZES = re.compile(r"\\(?:m?left|m?right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?")
_STYLES = re.compile(r"\\(?:displaystyle|textstyle|scriptstyle|limits|bf|rm|it)(?![a-zA-Z])")
_TEXT = re.compile(r"\\(?:mbox|textrm|textnormal|textit|textbf|textsf|mathrm|mathit|mathbf|boldsymbol|operatorname)\b")
_TEXT_GROUP = re.compile(r"\\text\s*\{\s*([^{}]*?)\s*\}")
_SHORT_TEXT = re.compile(r"\\text\s*\{\s*(\(?[A-Za-z]\)?|[-+.,:/\d\s\\$%]*|e|i|\\pi|\\%|\\\$)\s*\}")
_SPACES = re.compile(r"(?<!\\)\\(?:[,;: >]|q?quad(?![a-zA-Z])|hspace\{[^{}]*\}|phantom\{[^{}]*\}|enspace|thinspace)|~")
# Groups of three digits. A plain comma separates thousands only outside brackets, see _join_commas.
_SEPARATOR = r"(?:\{\s*,\s*\}|\{\\[,;: ]\}|\\text\{,\}|,\\!|\\[,;:!> ]|\\thinspace |~|[ ']|,\\[,;: ])"
_GROUPED = re.compile(rf"(?<![\d.^_])\d{{1,3}}(?:{_SEPARATOR}+\d{{3}})+(?!\d)")
_GROUPED_DECIMALS = re.compile(rf"(?<=\.\d\d\d){_SEPARATOR}(?=\d)|(?<=\d){_SEPARATOR}(?=\d\d\d(?:\D|$))(?<=\.\d\d\d\D)")
_COMMAS = re.compile(r"(?<![\d.,^_])\d{1,3}(?:,\d{3})+(?![\d,])")
_PLAIN_FUNCTION = re.compile(
    r"(?<![\\A-Za-z])(sqrt|sin|cos|tan|cot|log|ln|exp|pi|theta|infinity|infty|inf|alpha|beta|gamma)(?![A-Za-z])"
)
# A sign in words before the number of an answer, within the same \text{} or before it.
_SPELLED_SIGN = re.compile(
    r"^\s*(?:\\text\s*\{\s*(?:minus|negative)\s*(?:\}|(?P<inside>\s[\d.,/]+)\s*\})|(?:minus|negative)\b)\s*(?=[\d.\\]|$)",
    re.IGNORECASE,
)
_ZEROS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(
    rf"(?<![\d.,/}}^_])(?P<whole>\d+)(?:\.(?P<decimals>\d+))?\s*(?P<text>\\text\{{)?\s*(?P<scale>{'|'.join(_ZEROS)})s?\b",
    re.IGNORECASE,
)
_TAG = re.compile(r"\\(?:text|mathbb|mathcal|begin|end|overline|vec|hat|bar)\s*\{[^{}]*\}|\\[A-Za-z]+")


@lru_cache(maxsize=1024)
def normalize(latex: str) -> str:
    """Return the LaTeX without styles, sizes, thousands separators and superfluous spaces and periods."""
    if _INTEGER.fullmatch(latex):
        return latex
    text = _without_delimiters(as_latex(latex).strip().translate(_UNICODE))
    text = text.replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac").replace(r"\cfrac", r"\frac")
    text = _STYLES.sub(" ", _SIZES.sub("", text))
    text = _TEXT.sub(r"\\text", text).replace(r"\lbrace", r"\{").replace(r"\rbrace", r"\}")
    text = text.replace(r"\colon", ":").replace(r"\geq", r"\ge").replace(r"\leq", r"\le").replace(r"\neq", r"\ne")
    text = text.replace(r"\leslant", r"\le").replace(r"\geslant", r"\ge").replace(r"\imath", "i")
    for spellings, one in _ALIASES:
        text = spellings.sub(one, text)
    text = text.replace(r"\degree", r"^\circ").replace(r"\textdollar", r"\$").replace(r"\percent", r"\%")
    text = _TEXT_GROUP.sub(r"\\text{\1}", text) if r"\text" in text else text
    text = _GROUPED.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    text = _GROUPED_DECIMALS.sub("", text)
    text = re.sub(r"\{\s*,\s*\}", ",", text).replace(r"\!", "")
    text = _SPACES.sub(" ", text)
    text = _join_commas(text)
    text = _SHORT_TEXT.sub(r" \1", text)
    text = re.sub(r"(?<=\d)\.(?!\d)(?=[\s,;)\]}]|\\(?!overline|bar|dot)|$)", "", text)  # the trailing dot of "5."
    text = re.sub(r"(?<![\d])\.(?=\d)", "0.", text)
    text = _written_out(text)
    text = re.sub(r"\\text\{\s*\}", " ", text)
    text = _SPELLED_SIGN.sub(lambda found: "-" + (found["inside"] or ""), text)
    text = re.sub(r"(?<=\d)\s*(?:\\text\{to\}|\bto\b)\s*(?=\d)", ":", text)  # a ratio of 2 to 3
    text = _plain_spelling(text)
    text = re.sub(r"\s+", " ", text).strip()
    while text and text[-1] in ".,;" and not text.endswith(("..", ".m.")):
        text = text[:-1].rstrip()
    return text


def _written_out(text: str) -> str:
    """Write numbers such as ``2.5 million`` in digits."""

    def digits(found: re.Match[str]) -> str:
        zeros, decimals = _ZEROS[found["scale"].lower()], found["decimals"] or ""
        moved, left = decimals[:zeros].ljust(zeros, "0"), decimals[zeros:]
        return (found["whole"] + moved).lstrip("0").rjust(1, "0") + f".{left}" * bool(left) + (found["text"] or "")

    while (written := _SCALE.sub(digits, text)) != text:  # five hundred thousand
        text = written
    return text


def key_of(normalized: str) -> str:
    """Return the text without wrappers and spaces, except between digits; equal keys mean equal answers."""
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", normalized)
    text = re.sub(r"(?<![A-Za-z])\{([A-Za-z0-9])\}", r"\1", re.sub(r"([_^])\{([A-Za-z0-9])\}", r"\1\2", text))
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def words_of(normalized: str) -> str:
    """Return the words of a text in lower case, without wrappers, punctuation and superfluous spaces."""
    text = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", normalized)
    text = re.sub(r"(?<![\d])\.|\.(?!\d)", "", text)
    return re.sub(r"\s+", " ", re.sub(r"[\"'`!?,;]", " ", text)).strip().lower()


def _without_delimiters(text: str) -> str:
    for opening, closing in _DELIMITERS:
        inner = text[len(opening) : -len(closing)]
        whole = len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing)
        nested = opening.startswith("$") and "$" in inner.replace(r"\$", "")
        if whole and not nested and not inner.endswith("\\"):
            return _without_delimiters(inner.strip())
    trimmed = text.rstrip(" .")
    return _without_delimiters(trimmed) if trimmed != text and trimmed.endswith(("$", r"\)", r"\]")) else text


def _join_commas(text: str) -> str:
    """Join thousands that plain commas separate, outside all brackets: ``(100,200)`` is a point."""
    depth, pieces, start = 0, [], 0
    for found in re.finditer(r"\\?[()\[\]{}]", text):
        if depth == 0:
            pieces.append(_COMMAS.sub(lambda number: number[0].replace(",", ""), text[start : found.start()]))
            start = found.start()
        depth += 1 if found[0][-1] in "([{" else -1
        if depth <= 0:
            depth = 0
            pieces.append(_in_fraction(text[start : found.end()]))
            start = found.end()
    rest = text[start:]
    pieces.append(rest if depth else _COMMAS.sub(lambda number: number[0].replace(",", ""), rest))
    return "".join(pieces)


def _in_fraction(group: str) -> str:
    r"""Join the thousands of a group that is nothing but a number in braces, as in ``\frac{1,234}{5}``."""
    return group.replace(",", "") if re.fullmatch(r"\{\s*\d{1,3}(?:,\d{3})+\s*\}", group) else group


def _plain_spelling(text: str) -> str:
    r"""Write ``sqrt(2)``, ``pi``, ``x**2`` and ``\frac12`` as LaTeX with braces."""
    kept, pieces, start = re.compile(r"\\text\{[^{}]*\}"), [], 0
    for found in kept.finditer(text):
        pieces += [_plain_formula(text[start : found.start()]), found[0]]
        start = found.end()
    return "".join([*pieces, _plain_formula(text[start:])])


def _plain_formula(text: str) -> str:
    names = {"infinity": "infty", "inf": "infty"}
    text = _PLAIN_FUNCTION.sub(lambda found: f"\\{names.get(found[1], found[1])} ", text).replace("**", "^")
    text = re.sub(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\sqrt\s*([^\s{\[\\])", r"\\sqrt{\1}", text)
    text = re.sub(r"\\frac\s*([^\s{\\])\s*([^\s{\\])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac\s*([^\s{\\])\s*\{", r"\\frac{\1}{", text)
    text = re.sub(r"\\frac\s*(\{[^{}]*\})\s*([^\s{\\])", r"\\frac\1{\2}", text)
    text = re.sub(r"\^\s*\(([^()]*)\)", r"^{\1}", text)
    return re.sub(r"\^\s*\{?\s*\\circ\s*\}?", r"^\\circ ", text)
