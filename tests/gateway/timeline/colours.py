"""How far apart two colours are for readers who see colours differently."""

from typing import Any

Colour = tuple[int, ...]
"""Red, green, blue, 0 to 255."""

VISION = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.3039),
    ),
}
"""Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB."""


def distance(a: Colour, b: Colour, vision: Any) -> float:
    """CIE76 in L*a*b*; 2.3 is just noticeable side by side."""
    return sum((p - q) ** 2 for p, q in zip(_lab(a, vision), _lab(b, vision), strict=True)) ** 0.5


def _lab(rgb: Colour, vision: Any) -> tuple[float, float, float]:
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    seen = [min(1.0, max(0.0, _dot(row, linear))) for row in vision]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.95047, 1.0, 1.08883)
    x, y, z = (_root(_dot(row, seen) / of) for row, of in zip(to_xyz, white, strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _dot(row: Any, colour: list[float]) -> float:
    return sum(m * c for m, c in zip(row, colour, strict=True))


def _root(t: float) -> float:
    return t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
