"""The pictures in ``docs/pictures`` are those that the code draws."""

import pytest

from website.pictures.all import FOLDER, drawings
from website.pictures.svg import THEMES, Picture

DRAWINGS = drawings()


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_is_as_the_code_draws_it(name):
    kept = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert kept == DRAWINGS[name].svg(), "run python -m website.pictures"


def test_no_picture_is_left_over():
    assert {path.stem for path in FOLDER.iterdir()} == set(DRAWINGS)


def test_every_theme_has_every_colour():
    light, dark = THEMES.values()
    assert set(light) == set(dark)


@pytest.mark.parametrize("theme", THEMES)
def test_text_stands_out_from_every_ground(theme):
    colours = dict(THEMES[theme])
    grounds = [colours.pop(name) for name in ("plain", "one", "two", "three", "four", "shared")]
    for ground in [*grounds, {"light": "#ffffff", "dark": "#121212"}[theme]]:
        assert _contrast(colours["text"], ground) >= 7  # AAA of the accessibility guidelines
        assert _contrast(colours["quiet"], ground) >= 4.5 or ground in grounds[1:]


def test_text_that_does_not_fit_its_box_is_refused():
    with pytest.raises(ValueError, match="needs 73 x 18"):
        Picture(100, 100, "").box(0, 0, 50, 30, "ten letter")


def _contrast(first, second):
    high, low = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
