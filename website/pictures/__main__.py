"""Writes every picture to ``docs/pictures``."""

from website.pictures.all import FOLDER, drawings

for name, picture in drawings().items():
    (FOLDER / f"{name}.svg").write_text(picture.svg(), encoding="utf-8")
