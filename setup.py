"""The description on a package index: the README, whose links and pictures are of files of the project."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
ADDRESS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"]


def described(readme: str) -> str:
    """Return a README with absolute links and pictures."""
    pictured = re.sub(r"(?m)^(\.\. image:: )(?!https?:)", rf"\1{ADDRESS}/raw/main/", readme)
    return re.sub(r"<(?!https?:)([^<>\s]+)>`_", rf"<{ADDRESS}/blob/main/\1>`_", pictured)


setup(long_description=described((ROOT / "README.rst").read_text()), long_description_content_type="text/x-rst")
