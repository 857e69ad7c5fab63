"""Lets tools that know no pyproject.toml install the package; all metadata is in setup.cfg."""

from setuptools import setup

setup()
