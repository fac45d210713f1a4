"""Q-learning over the layers' implementations (QS-DNN, sections IV-B to V-B, algorithm 1).

From the paper: an agent walks through the layers in order; its state is the layer and the implementation it chose
there, its action the implementation of the next layer. Equation 2 with learning rate 0.05 and discount 0.9 updates the
values. Every step is rewarded with the negative seconds of its own layer, to which the penalties of incompatibilities
with layers before it are added (reward shaping). Half of the episodes explore only, then 5 % each are spent at every
epsilon from 0.9 down to 0. After each episode a batch from a replay buffer of 128 is presented again. The answer is the
best episode.

The paper leaves open: how large the batch is (here 32); whether the buffer forgets the oldest (here it does), what it
holds (here whole episodes), the order of updates within an episode (here all steps at once), the values before the
first visit (here 0, more than any reward, so that what was never tried is tried), and what becomes of combinations that
are impossible rather than slow (here they are not offered where one layer forbids them; an episode that runs into a
dead end is punished with twice the most that a whole one can cost).

What follows from the discount: a cost that is paid one layer later weighs less. Two layers that one routine computes,
whose cost stands at the second, look cheaper than they are, so that in the end such pairs may be taken where they do
not pay.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nnstretch.scheduler.selection.base import HeuristicSearcher, SearchResult
from nnstretch.scheduler.selection.baselines.episodes import Episodes, Mask, allowed, allowed_masks
from nnstretch.scheduler.selection.problem import Costs, Problem

_RATE = 0.05
_DISCOUNT = 0.9
_BUFFER = 128
_BATCH = 32


class QLearning(HeuristicSearcher):
    """The paper's search, with its parameters."""

    name = "q-learning"

    def __init__(self, episodes: int = 1000) -> None:
        """`episodes`: how often the agent walks through all layers."""
        self._episodes = episodes

    def _search(self, problem: Problem) -> SearchResult:
        episodes = Episodes(problem)
        if not problem.costs:
            episodes.add(())
            return episodes.found()
        random = np.random.default_rng(problem.seed)
        agent = _Agent(problem, random)
        buffer: deque[_Episode] = deque(maxlen=_BUFFER)
        for epsilon in schedule(self._episodes):
            episode = agent.walk(epsilon)
            episodes.add(episode.choices)
            agent.learn(episode)
            buffer.append(episode)
            for number in random.integers(0, len(buffer), _BATCH).tolist():
                agent.learn(buffer[number])
        return episodes.found()


def schedule(episodes: int) -> list[float]:
    """Epsilon of every episode."""
    exploring = episodes - episodes // 2
    rest = episodes - exploring
    return [1.0] * exploring + [0.9 - 0.1 * (10 * i // rest) if 10 * i // rest < 9 else 0.0 for i in range(rest)]


@dataclass(frozen=True, eq=False)
class _Episode:
    """One walk: the choice at every layer, what it was rewarded with, and where the values it touches are.

    `actions` are places of (layer, state, action), `successors` rows of (layer after, action).
    """

    choices: list[int]
    rewards: Costs
    actions: NDArray[np.intp]
    successors: NDArray[np.intp]


class _Agent:
    """Values of actions by (layer, state, action), where the state is the choice at the layer before (0 at the first)."""

    def __init__(self, problem: Problem, random: np.random.Generator) -> None:
        sizes = problem.sizes
        self._problem = problem
        self._random = random
        self._masks: list[list[tuple[int, Mask]]] = allowed_masks(problem)
        self._width = max(sizes)
        self._values = np.full((len(sizes) + 1, self._width, self._width), -np.inf)
        for layer, size in enumerate(sizes):
            self._values[layer, :, :size] = 0.0
        self._values[-1] = 0.0  # nothing comes after the last layer
        self._flat = self._values.reshape(-1)
        self._rows = self._values.reshape(-1, self._width)
        most = sum(float(c.max()) for c in problem.costs)
        most += sum(float(m[np.isfinite(m)].max()) for m in problem.edges.values())
        self._punishment = -2.0 * most

    def walk(self, epsilon: float) -> _Episode:
        """An episode in which every action is random with probability `epsilon`, else the best known."""
        count = len(self._problem.costs)
        explores = (self._random.random(count) < epsilon).tolist()
        draws = self._random.random(count).tolist()
        best = self._values[:-1].argmax(axis=2).tolist()
        choices: list[int] = []
        for layer, size in enumerate(self._problem.sizes):
            state = choices[-1] if choices else 0
            if self._masks[layer]:
                options = np.flatnonzero(allowed(self._masks[layer], choices, size))
                known = self._values[layer, state, options]
                pick = int(draws[layer] * len(options)) if explores[layer] else int(known.argmax())
                choices.append(int(options[pick]))
            else:
                choices.append(int(draws[layer] * size) if explores[layer] else best[layer][state])
        taken = np.array(choices, dtype=np.intp)
        states = np.concatenate([[0], taken[:-1]]) + self._width * np.arange(count)
        successors = taken + self._width * np.arange(1, count + 1)
        return _Episode(choices, self._rewards(choices), states * self._width + taken, successors)

    def learn(self, episode: _Episode) -> None:
        """Equation 2 for all steps of an episode."""
        ahead = self._rows[episode.successors].max(axis=1)
        known = self._flat[episode.actions]
        self._flat[episode.actions] = known + _RATE * (episode.rewards + _DISCOUNT * ahead - known)

    def _rewards(self, choices: list[int]) -> Costs:
        rewards = np.array([-c[i] for c, i in zip(self._problem.costs, choices, strict=True)])
        for (u, v), matrix in self._problem.edges.items():
            rewards[v] -= matrix[choices[u], choices[v]]
        return np.where(np.isfinite(rewards), rewards, self._punishment)
