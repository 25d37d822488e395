"""The two compiled parts; all else about the package stands in pyproject.toml.

Without a compiler the installation goes on. torch does the same arithmetic then, and Python looks at the
same tensors, slower: docs/adr/0028-one-pass-over-memory.md, and
docs/adr/0053-many-tensors-are-looked-at-in-one-call.md.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "ps_wire.process._kernels",
            sources=["ps_wire/process/kernels.c"],
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,
        ),
        Extension(
            "ps_worker.memory._tensor_list",
            sources=["ps_worker/memory/tensor_list.cpp"],
            extra_compile_args=["-O2"],
            language="c++",
            optional=True,
        ),
    ]
)
