"""What may stand before and after the number of an answer.

Words, units, markup and punctuation may. Signs, letters and words that make another number of it may not, as in
``18!``, ``18x``, ``18 mod n``, ``x - 18`` and ``half of 18``.
"""

import re
import unicodedata

from embodyflow.rewards.functions.units import NUMBER_WORDS, is_known

# Commands, tags and signs that only set text, in LaTeX, HTML and special tokens; and the sign of degrees.
_MARKUP = re.compile(
    r"\\(?:boxed|fbox|text(?:bf|it|rm|sf|tt|normal|dollar)?|math(?:rm|bf|sf|it)|mbox|bf|rm|left|right|displaystyle|q?quad"
    r"|degree|percent|approx)(?![a-zA-Z])|\\[^a-zA-Z]|\\$|\^?\s*\{?\s*(?:\\circ(?![a-z])|°)\s*\}?|&nbsp;"
    r"|<[/|]?[a-zA-Z_]+[ /|]*>"
)
_COMMAND = re.compile(r"\\[a-zA-Z]")
_NUMBER_WORD = re.compile(rf"\b(?:{NUMBER_WORDS})\b", re.IGNORECASE)
_DENIED = re.compile(
    r"\b(?:minus|neg|negative|not|never|neither|cannot|(?:less|fewer|more|greater|larger|smaller) than"
    r"|at (?:least|most))\b|n['’]t\b|[<>≤≥≠±⁻]|!=|\+/-|\\(?:pm|mp|neg|ne|le|ge|lt|gt)(?![a-z])|&[lg]t;",
    re.IGNORECASE,
)
"""Words and signs before a number which say that it is another one."""
# A minus that is neither the number's own sign nor a hyphen within a word nor before an item of a list: "-(5)", "-R$5".
_OTHER_MINUS = re.compile(r"(?<!\w)-(?! [a-z])|-(?=[^\w\s])", re.IGNORECASE)
_CHANGED_BEFORE = re.compile(
    r"(?:√|\b(?:sqrt|log|ln|exp|sin|cos|tan|root of|half(?: of)?|(?:quarter|third|percent|square|cube) of|twice|double"
    r"|triple|times|plus|or|(?:opposite|inverse|reciprocal|complement) of|over|under|above|below|up to|mod|base)"
    r"\s*[({\[|]*|(?:^|\s)—|[/÷×·∙∗]|[^\W_]\s*(?<!\*)\*)\s*$",
    re.IGNORECASE,
)
"""Words and signs right before a number that make another number of it."""
# A letter, digit or sign that touches the number, other than a currency; and a single letter or a function before it.
_TOUCHING = re.compile(r"(?:[^\W_]|[^\W_][!'’]|[!,٫٬])$")
_CURRENCY = re.compile(r"(?<![^\W_])(?:Rs|USD|EUR|GBP|INR|CAD|AUD)$", re.IGNORECASE)
_FACTOR = re.compile(r"(?<![^\W_])(?![aA]\s)[^\W_]\s+$|[^\W_][({\[_]+\s*$")
# A term before the sign of a number, which makes a sum or a difference of it.
_TERM = re.compile(r"(?:[\w)\]}]|(?<![^\W_])[^\W_]\s)$")
_CHANGED_AFTER = re.compile(
    r"\s*(?:doubled|tripled|halved|double|twice|to the (?:power|\w+th)|squared|cubed|factorial|hal(?:f|ves)"
    r"|thirds?|gross|score|grand|mil|mio|(?:(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand|million)?ths))\b|\s*[!·∙∗‰‱]|\s*\*\s*[a-z(]|_+[^\W_]|[-−](?!\w)"
    r"|\.\.|…|\s*\^(?!\s*\{?\\circ)|\\(?![a-zA-Z\W])",
    re.IGNORECASE,
)
"""Words and signs right after a number that make another number of it."""
_TAKEN_BACK = re.compile(
    r"\b(?:or|not|never|cannot|wrong|incorrect|negative|in debt|at (?:least|most)"
    r"|too (?:low|high|small|large|big|few|many)|(?:an?|one)[- ](?:half|quarter|third|fourth|fifth|tenth))\b|n['’]t\b"
    r"|[,;.?!-]\s*no\s*(?:$|[.,;!])",
    re.IGNORECASE,
)
"""Words anywhere after a number that offer another one, or take it back."""
_IN_PARENTHESES = re.compile(r"\([^()]*\)")  # says the number again: "12 (a dozen)"
_LABEL = re.compile(r"\b[A-Z][a-z]+ [A-Z]\b")  # "18 for Team B"
_WORD = re.compile(r"[^\W\d_]+(?:['’][a-z]+)?")
_LETTERS = frozenset("amgshlACFIJLNVW")
"""Single letters after a number that are no variable: an article, a pronoun and units."""


def may_precede(text: str, *, sign: str) -> bool:
    """Return True if a number after this text is still that number.

    Args:
        text: Text before the number's sign and currency.
        sign: The sign, currency and space between the text and the number.
    """
    if _DENIED.search(text) or _OTHER_MINUS.search(text) or _CHANGED_BEFORE.search(text):
        return False
    plain = _MARKUP.sub("", text)
    if _COMMAND.search(plain) or _FACTOR.search(plain):
        return False
    if sign.startswith(("-", "+")):
        return not _TERM.search(plain.rstrip() if sign[1:].startswith(" ") else plain)
    return bool(sign) or not _TOUCHING.search(plain) or bool(_CURRENCY.search(plain))


def may_follow(text: str) -> bool:
    """Return True if a number before this text is still that number."""
    if _CHANGED_AFTER.match(text) or _TAKEN_BACK.search(text) or _is_marked(text):
        return False
    plain = _MARKUP.sub(" ", text)
    if _COMMAND.search(plain) or any(_is_mathematical(each) for each in re.sub(r"\|\s*$", "", plain)):
        return False
    if any(len(word) == 1 and word not in _LETTERS for word in _WORD.findall(_LABEL.sub(" ", plain))):
        return False
    if _NUMBER_WORD.search(_IN_PARENTHESES.sub(" ", plain)):
        return False
    touching = _WORD.match(text)
    return touching is None or not _is_product(touching[0])


def _is_marked(text: str) -> bool:
    """Return True if a mark belongs to the number's last digit, such as a stroke through it; a keycap is a picture."""
    return bool(text) and unicodedata.category(text[0]).startswith("M") and not text.startswith("\ufe0f\u20e3")


def _is_mathematical(character: str) -> bool:
    """Return True for signs between terms and for numbers, also those of scripts without digits."""
    return unicodedata.category(character) == "Sm" or unicodedata.numeric(character, None) is not None


def _is_product(word: str) -> bool:
    """Return True if letters that touch a number are variables and no unit."""
    return len(word) < 3 and word.islower() and word not in ("st", "nd", "rd", "th") and not is_known(word, spaced=True)
