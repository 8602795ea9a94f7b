"""Shrinkage by token: an episode's teacher log-ratios are noisy too, and no replay tells how much."""

from __future__ import annotations

import numpy as np


def token_shrinkage(log_ratios: np.ndarray, episode: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The positive-part James-Stein factor max(0, 1 - (n - 2) sigma2 / ||delta||^2) of each token, float32 [N].

    The n log-ratios delta of an episode are taken as one vector observed with noise of variance sigma2 in each token, so
    its tokens have one factor: near 1 where the teacher differs from the student much more than it does elsewhere, 0
    where it differs as it does everywhere. sigma2 is the mean squared log-ratio of the tokens in the mask: nothing
    tells noise from signal at one token, so a typical episode counts as noise. The factor is at most 1; with fewer than
    three tokens there is nothing to be gained from shrinking, and it is 1.

    Args:
        log_ratios: [N] log pi_teacher - log pi_student, clipped as the loss clips them; not read outside the mask.
        episode: int [N], at least 0.
        mask: bool [N], the tokens with a teacher; others get 0.
    """
    squares = np.where(mask, log_ratios, 0.0).astype(np.float64) ** 2
    count, norm = np.bincount(episode, weights=mask), np.bincount(episode, weights=squares)
    sigma2 = squares.sum() / max(mask.sum(), 1)
    noise = np.maximum(count - 2.0, 0.0) * sigma2
    # an episode that differs nowhere has nothing to weigh
    factor = np.maximum(0.0, 1.0 - noise / np.where(norm > 0.0, norm, np.inf))
    return np.where(mask, factor[episode], 0.0).astype(np.float32)
