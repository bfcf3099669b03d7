"""TorchInductor's compiler in this process: what it needs of the machine, and where it keeps what it compiled."""

import os
import shutil
import subprocess

from embodyflow.errors import ConfigError
from embodyflow.process.files.private_folder import user_folder

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
TRUSTED_VERSION = 12
"""Major version from which g++ and clang++ know all vector instructions that TorchInductor uses."""


def require_cpp_compiler() -> str:
    """Return the path of the C++ compiler that TorchInductor calls.

    Raises:
        ConfigError: This machine has none.
    """
    compiler = os.environ.get("CXX", "g++")
    if (path := shutil.which(compiler)) is None:
        raise ConfigError(
            f"trainer.compile=true: needs the C++ compiler {compiler}, which is not on PATH; install it, name another "
            "one by CXX, or set false"
        )
    return path


def use_compiler() -> None:
    """Let TorchInductor keep compiled code in a folder of this user alone and compile in this process.

    Its default folder has a name that another user of the machine can take first. Its pool of processes would outlive
    a killed worker. A user's own ``TORCHINDUCTOR_CACHE_DIR`` is kept.

    Raises:
        ConfigError: There is no C++ compiler, the folder cannot be created, or another user has made it.
    """
    import torch._inductor.config as settings  # takes a second to import
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    settings.compile_threads = 1
    shared = default_cache_dir()
    # Parts of torch set the variable to the default as they are imported.
    if os.environ.get(CACHE_VARIABLE, shared) == shared:
        os.environ[CACHE_VARIABLE] = str(user_folder("compiled"))
    # By default each process starts others to try vector instructions, which takes most of the time of a cached start.
    if _major_version(require_cpp_compiler()) >= TRUSTED_VERSION:
        settings.cpp.vec_isa_ok = True


def _major_version(compiler: str) -> int:
    shown = subprocess.run([compiler, "-dumpversion"], capture_output=True, text=True, check=True).stdout
    return int(shown.split(".")[0])
