"""Epsilon by the library, for figures that were computed apart."""

from __future__ import annotations

import math
import sys

import pytest

from fedproc.errors import InputError
from fedproc.privacy import accountant
from fedproc.privacy.options import PrivacyOptions
from fedproc.privacy.promise import Promise

THOUSAND = (0.1, 200, 1e-5)  # an expected cohort of 100 of 1,000 clients, 200 rounds, delta


def promise(rate: float = 0.1, clients: int = 1000, rounds: int = 200, **given: object) -> Promise:
    return Promise(PrivacyOptions(**given), rate, clients, rounds)  # type: ignore[arg-type]


def test_known_figures() -> None:
    assert accountant.epsilon(1.0, *THOUSAND) == pytest.approx(9.97, abs=0.005)
    assert accountant.epsilon(10.0, 1.0, 100, 1e-5) == pytest.approx(4.38, abs=0.005)  # ten sites in every round
    assert accountant.epsilon(1.0, 1.0, 100, 1e-5) == pytest.approx(91.8, abs=0.1)
    assert accountant.epsilon(0.0, *THOUSAND) == math.inf
    assert accountant.epsilon(1.0, 0.1, 0, 1e-5) == 0


def test_one_release_is_the_gaussian_mechanisms() -> None:
    """delta = Phi(1/2z - z eps) - e^eps Phi(-1/2z - z eps), exactly (Balle and Wang 2018)."""

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    for z in (0.7, 1.0, 3.0):
        eps = accountant.epsilon(z, 1.0, 1, 1e-5)
        delta = phi(0.5 / z - z * eps) - math.exp(eps) * phi(-0.5 / z - z * eps)
        assert delta == pytest.approx(1e-5, rel=0.02)


def test_the_noise_that_is_found_keeps_the_budget_and_hardly_more() -> None:
    noise = accountant.noise_for(8.0, *THOUSAND)
    assert noise == pytest.approx(1.13, abs=0.005)
    assert accountant.epsilon(noise, *THOUSAND) <= 8.0 < accountant.epsilon(noise - 1e-3, *THOUSAND)


def test_very_little_noise_is_told_by_renyi() -> None:
    assert accountant.LARGEST < accountant.epsilon(0.1, 1.0, 100, 1e-5) < math.inf  # 5,000 and more


def test_the_count_takes_its_share_of_the_noise() -> None:
    adaptive = promise(noise=1.0, clipping="adaptive")
    assert adaptive.count_noise == 5.0  # a twentieth of 100
    assert adaptive.update_noise**-2 + (2 * adaptive.count_noise) ** -2 == pytest.approx(1.0)
    assert promise(clients=20, noise=1.0, clipping="adaptive").count_noise == 1.0
    with pytest.raises(InputError, match=r"privacy.count_noise 0.5: expected more than half"):
        promise(noise=1.0, clipping="adaptive", count_noise=0.5).checked()


def test_a_budget_that_does_not_last_is_refused() -> None:
    with pytest.raises(InputError, match=r"privacy.epsilon 8: 200 rounds with privacy.noise 1 spend 9.97"):
        promise(noise=1.0, epsilon=8.0).checked()
    assert promise(noise=1.2, epsilon=8.0).checked().noise == 1.2


def test_what_is_said_before_the_run() -> None:
    (line,) = promise(noise=1.0).words()
    assert "epsilon 9.97 at delta 1e-05 for adding or removing one client, over 200 rounds" in line
    assert "each client in a round with probability 0.1 (expected 100)" in line
    said = promise(1.0, 10, 100, noise=10.0, where="client").words()
    assert "the server itself sees each answer" in said[1] and "nothing hides" in said[2]
    assert promise(noise=0.0).words() == ["privacy: no noise, so nothing is promised (epsilon is infinite)"]


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r"pip install 'fedproc\[privacy\]'"):
        accountant.epsilon(1.2345, *THOUSAND)
