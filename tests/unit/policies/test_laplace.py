import math

import numpy as np
import torch
from scipy import stats

from embodyflow.policies.laplace import entropies, log_densities, standard_samples


def test_densities_and_entropies_are_those_of_scipy() -> None:
    values, medians, scales = (
        torch.tensor(numbers) for numbers in ([0.0, 1.5, -2.0], [0.5, 1.5, 3.0], [0.1, 2.0, 0.7])
    )
    expected = stats.laplace(medians.numpy(), scales.numpy())
    np.testing.assert_allclose(log_densities(values, medians, scales), expected.logpdf(values.numpy()), rtol=1e-5)
    np.testing.assert_allclose(entropies(scales), expected.entropy(), rtol=1e-5)


def test_samples_invert_the_distribution_function() -> None:
    uniforms = torch.linspace(0.001, 0.999, 999).unsqueeze(0)
    samples = standard_samples(uniforms)
    np.testing.assert_allclose(stats.laplace().cdf(samples.numpy()), uniforms, atol=1e-6)
    assert samples[0, 499] == 0


def test_the_ends_of_the_uniforms_give_finite_samples() -> None:
    samples = standard_samples(torch.tensor([[0.0, 1.0 - 2.0**-24]]))
    assert samples.isfinite().all() and samples[0, 0] < -math.log(1e6) and samples[0, 1] > math.log(1e6)
