"""The preconditioner: lengths, principal axes, the way back, and rows that do not depend on each other."""

from __future__ import annotations

import pytest
import torch

from gswgan.generators.preconditioner import LARGEST, Preconditioner

CPU = torch.device("cpu")
SHAPES = [(5, 7), (3, 16), (LARGEST + 1, 2), (8, 72)]
WIDTH = sum(a * b for a, b in SHAPES)


def made(power: float, device: torch.device = CPU) -> tuple[Preconditioner, torch.Tensor]:
    """From public gradients that are strong in few directions."""
    rng = torch.Generator().manual_seed(0)
    parts = []
    for rows, columns in SHAPES:
        left, right = (torch.randn(size, size, generator=rng) for size in (rows, columns))
        left, right = left * torch.logspace(0, -2, rows), right * torch.logspace(0, -2, columns)[:, None]
        parts.append((left @ torch.randn(40, rows, columns, generator=rng) @ right).flatten(1))
    public = torch.cat(parts, dim=1)
    found = Preconditioner(SHAPES, device)
    found.fit(public.to(device), power=power)
    return found, public


def test_without_scales_no_length_changes_and_the_way_back_leads_back() -> None:
    preconditioner, public = made(0.0)
    assert torch.equal(preconditioner.scales, torch.ones(WIDTH))
    found = preconditioner.forward(public)
    torch.testing.assert_close(found.norm(dim=1), public.norm(dim=1))
    torch.testing.assert_close(preconditioner.back(found[3]), public[3], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, public, rtol=0.1)  # something was turned


def test_the_axes_are_those_of_the_public_gradients() -> None:
    """Along them the second moments of a matrix's rows and columns are not correlated."""
    preconditioner, public = made(0.0)
    moved = preconditioner.forward(public)[:, -8 * 72 :].view(40, 8, 72)
    for pair in ("nij,nkj->ik", "nij,nik->jk"):
        square = torch.einsum(pair, moved, moved)
        beside = square - torch.diag(square.diagonal())
        assert beside.abs().max() < 1e-4 * square.diagonal().max()


def test_scales_even_out_the_second_moments_and_are_applied_twice_in_an_update() -> None:
    plain, public = made(0.0)
    scaled, _ = made(1.0)
    spread = [float(part.square().mean(dim=0).log().std()) for part in (plain.forward(public), scaled.forward(public))]
    assert spread[1] < 0.75 * spread[0]
    assert float(scaled.scales.square().mean()) == pytest.approx(1.0)
    update = scaled.back(scaled.forward(public[:1])[0])
    expected = plain.back(plain.forward(public[:1])[0] * scaled.scales**2)
    torch.testing.assert_close(update, expected, rtol=1e-3, atol=1e-4)


def test_a_matrix_without_public_gradients_has_scales_that_are_numbers() -> None:
    """After one step of pre-training some weights have had no gradient yet, and a release is spent by then."""
    _, public = made(0.5)
    public[:, : 5 * 7] = 0.0
    preconditioner = Preconditioner(SHAPES, CPU)
    preconditioner.fit(public, power=0.5)
    assert preconditioner.scales.isfinite().all()
    assert (preconditioner.scales > 0).all()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_row_is_the_same_to_the_last_bit_wherever_it_stands_and_whoever_is_there(device: str) -> None:
    preconditioner, _ = made(0.5, torch.device(device))
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    rng = torch.Generator().manual_seed(1)
    rows = torch.randn(32, WIDTH, generator=rng).to(device, kind)
    expected = preconditioner.forward(rows)
    for trial in range(4):
        order = torch.randperm(32, generator=rng).to(device)
        others = torch.randn(32, WIDTH, generator=rng).to(device, kind) * 10.0**trial
        others[order[:9]] = rows[:9]
        assert torch.equal(preconditioner.forward(others)[order[:9]], expected[:9])


def test_what_is_saved_is_all_there_is() -> None:
    preconditioner, public = made(0.5)
    other = Preconditioner(SHAPES, CPU)
    other.load_state({name: value.clone() for name, value in preconditioner.state().items()})
    assert torch.equal(other.forward(public), preconditioner.forward(public))
    assert torch.equal(other.back(public[0]), preconditioner.back(public[0]))
