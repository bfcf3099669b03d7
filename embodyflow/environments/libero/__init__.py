"""LIBERO (Liu et al., 2023, arXiv:2306.03310) as Gymnasium environments; needs the extra ``libero``."""

import embodyflow.environments.robosuite  # noqa: F401 imports robosuite, which LIBERO imports too, without its renderer
