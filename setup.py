"""The one compiled part; all else about the package stands in pyproject.toml.

Without a C compiler the installation goes on, and torch does the same arithmetic, slower:
docs/adr/0028-one-pass-over-memory.md.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "ps_wire.process._kernels",
            sources=["ps_wire/process/kernels.c"],
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,
        )
    ]
)
