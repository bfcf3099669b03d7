"""PushT (Chi et al., 2023, arXiv:2303.04137) of the package gym-pusht; needs the extra ``pusht``."""
