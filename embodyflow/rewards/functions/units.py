"""Units of measurement: canonical names, and factors between units of the same dimension."""

import re
from dataclasses import dataclass
from fractions import Fraction

_LENGTH = {
    "mm": Fraction(1, 1000),
    "cm": Fraction(1, 100),
    "dm": Fraction(1, 10),
    "m": Fraction(1),
    "km": Fraction(1000),
    "in": Fraction("0.0254"),
    "ft": Fraction("0.3048"),
    "yd": Fraction("0.9144"),
    "mi": Fraction("1609.344"),
}
_OTHERS = {
    "mass": {
        "mg": Fraction(1, 1000),
        "g": Fraction(1),
        "kg": Fraction(1000),
        "oz": Fraction("28.349523125"),
        "lb": Fraction("453.59237"),
    },
    "time": {
        "ms": Fraction(1, 1000),
        "s": Fraction(1),
        "min": Fraction(60),
        "h": Fraction(3600),
        "day": Fraction(86400),
        "week": Fraction(604800),
    },
    "volume": {"ml": Fraction(1, 1000), "l": Fraction(1)},
    "money": {"cent": Fraction(1, 100), "dollar": Fraction(1)},
}
_NAMES = {
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "dm": "decimeter decimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "mg": "milligram",
    "g": "gram gm",
    "kg": "kilogram kilo",
    "oz": "ounce",
    "lb": "pound",
    "ms": "millisecond",
    "s": "second sec",
    "min": "minute mins",
    "h": "hour hr",
    "day": "day",
    "week": "week",
    "ml": "milliliter millilitre",
    "l": "liter litre",
    "cent": "cent ¢",
    "dollar": r"dollar usd $",
    "euro": "euro eur €",
    "yen": "yen ¥",
    "rupee": "rupee ₹ rs",
    "gbp": "gbp £",
    "degree": "degree deg °",
    "radian": "radian rad",
    "mph": "mph",
    "am": "am a.m. a.m",
    "pm": "pm p.m. p.m",
    "percent": r"percent percentage pct %",
    "month": "month",
    "year": "year yr",
    "unit": "unit",
    "people": "people person persons",
    "child": "child children",
    "man": "man men",
    "woman": "woman women",
    "N": "newton",
    "J": "joule",
    "W": "watt",
}
_CANONICAL = {name: unit for unit, names in _NAMES.items() for name in (unit, *names.split())}
_FACTORS = {unit: ("length", factor) for unit, factor in _LENGTH.items()} | {
    unit: (dimension, factor) for dimension, units in _OTHERS.items() for unit, factor in units.items()
}
_DENIAL = r"not|never|wrong|incorrect|false"
NUMBER_WORDS = (
    r"zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|(?:hundred|thousand|million|billion|trillion|dozen|lakh|crore)s?"
)
"""Pattern of words that count as a second number, as its digits do. ``One`` is often no number."""
_CHANGE = re.compile(
    r"squared|cubed|factorial|hal(?:f|ves)|thirds?|(?:(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand|million)?ths)"
    r"|negative|minus|plus|times|no|or|gross|score|grand|mil|mio|doubled?|twice|tripled?|halved|point"
)
_REFUSED = re.compile(rf"{_DENIAL}|(?:below|remainder|one)|{NUMBER_WORDS}")
_SINGLE_LETTERS = frozenset("mgshlLNJWAVCFK")
_POWER = re.compile(r"\^?\{?(-?\d)\}?$")


@dataclass(frozen=True)
class Unit:
    """A unit in canonical spelling, such as ``m^2`` for square meters."""

    name: str

    def factor_to(self, other: "Unit") -> Fraction | None:
        """Return how many of the other unit make up this one; ``None`` if they measure different things."""
        if self.name == other.name:
            return Fraction(1)
        one, two = _dimension(self.name), _dimension(other.name)
        if one is None or two is None or one[:2] != two[:2]:
            return None
        return one[2] / two[2]


def parse_unit(text: str) -> Unit:
    """Return the unit of a text such as ``square centimeters``, ``cm^2``, ``miles per hour`` or ``apples``."""
    text = re.sub(r"[{}\\]", " ", text.replace(r"\text", " ").replace(r"\circ", "°").replace("^ °", "°"))
    text = re.sub(r"\^\s*°", "°", re.sub(r"\s*\^\s*(-?\d)\s*", r"^\1 ", text))
    parts = [_product(part) for part in re.split(r"/|\bper\b", text)]
    return Unit("/".join(part for part in parts if part))


def is_known(word: str, *, spaced: bool) -> bool:
    """Return True if a bare word is a unit; a single letter, which may be a variable, only after a space."""
    word = _POWER.sub("", word.strip()) if "^" in word else word.strip()
    if len(word) == 1:
        return spaced and word in _SINGLE_LETTERS
    return _word(word) in _NAMES


def changes_number(words: str) -> bool:
    """Return True if words after a number make another number of it, such as ``squared``, or deny it."""
    first, *others = re.findall(r"[a-z]+", words.replace(r"\text", " ").lower()) or [""]
    return bool(_CHANGE.fullmatch(first)) or any(_REFUSED.fullmatch(word) for word in (first, *others))


def _product(text: str) -> str:
    """Return the canonical spelling of words, with ``square`` and ``cubic`` as powers."""
    power, words = "", []
    for word in text.replace("-", " ").split():
        low = word.lower().strip(".,")
        if low in ("square", "sq", "squared"):
            power = "^2"
        elif low in ("cubic", "cu", "cubed"):
            power = "^3"
        elif low not in ("of", "the", "a", "an", "total"):
            words.append(_with_power(word))
    return " ".join(words) + power


def _with_power(word: str) -> str:
    base, caret, power = word.partition("^")
    return _word(base) + (caret + power if caret and power != "1" else "")


def _word(word: str) -> str:
    if len(word) == 1:
        return _CANONICAL.get(word, word)
    low = word.lower().rstrip(",")
    for form in (low, low.rstrip("."), low.rstrip(".").removesuffix("s"), low.rstrip(".").removesuffix("es")):
        if form in _CANONICAL:
            return _CANONICAL[form]
    low = low.rstrip(".")
    return low.removesuffix("s") if len(low) > 3 and not low.endswith("ss") else low


def _dimension(name: str) -> tuple[str, str, Fraction] | None:
    base, _, power = name.partition("^")
    if base not in _FACTORS or (power and not power.lstrip("-").isdigit()):
        return None
    dimension, factor = _FACTORS[base]
    return dimension, power or "1", factor ** int(power or 1)
