"""Q-learning over the layers' implementations (QS-DNN, sections IV-B to V-B, algorithm 1).

From the paper: an agent walks through the layers in order. Its state is the layer and the implementation chosen there;
its action is the implementation of the next layer. Equation 2 with learning rate 0.05 and discount 0.9 updates the
values. The reward of a step is the negative time of its layer and of the adapt layers from earlier layers (reward
shaping). Half of the episodes only explore; epsilon then falls from 0.9 to 0, with 5 % of the episodes at each value.
After each episode the agent replays a batch from a buffer of 128. The answer is the best episode.

The paper leaves these open:

- The batch has 32 episodes. The buffer holds whole episodes and drops the oldest.
- All steps of an episode update at once.
- Initial values are 0, above any reward, so the agent tries every action.
- The agent does not see actions that an earlier layer forbids. A dead end costs twice the most expensive episode.

The discount makes later costs weigh less. The cost of two fused layers stands at the second, so the agent underestimates
fused pairs and may choose them where they do not pay.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nnstretch.scheduler.selection.base import HeuristicSearcher, SearchResult
from nnstretch.scheduler.selection.baselines.random_search import Episodes, Mask, allowed, allowed_masks
from nnstretch.scheduler.selection.problem import Costs, Problem

_RATE = 0.05
_DISCOUNT = 0.9
_BUFFER = 128
_BATCH = 32


@dataclass
class QLearning(HeuristicSearcher):
    """The paper's search, with its parameters."""

    name = "q-learning"
    episodes: int = 1000
    """Number of walks through all layers."""

    def _search(self, problem: Problem) -> SearchResult:
        episodes = Episodes(problem)
        if not problem.costs:
            episodes.add(())
            return episodes.found()
        random = np.random.default_rng(problem.seed)
        agent = _Agent(problem, random)
        buffer: deque[_Episode] = deque(maxlen=_BUFFER)
        for epsilon in schedule(self.episodes):
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
    """One walk.

    Attributes:
        choices: the choice at every layer.
        rewards: the reward at every layer.
        actions: flat indices of the values of (layer, state, action).
        successors: row indices of the values of (next layer, action).
    """

    choices: list[int]
    rewards: Costs
    actions: NDArray[np.intp]
    successors: NDArray[np.intp]


class _Agent:
    """Values of actions by (layer, state, action). The state is the previous layer's choice, 0 at the first layer."""

    def __init__(self, problem: Problem, random: np.random.Generator) -> None:
        sizes = problem.sizes
        self._problem = problem
        self._random = random
        self._masks: list[list[tuple[int, Mask]]] = allowed_masks(problem)
        self._width = max(sizes)
        self._values = np.full((len(sizes) + 1, self._width, self._width), -np.inf)
        for layer, size in enumerate(sizes):
            self._values[layer, :, :size] = 0.0
        self._values[-1] = 0.0  # the last layer has no successor
        self._flat = self._values.reshape(-1)
        self._rows = self._values.reshape(-1, self._width)
        most = sum(float(c.max()) for c in problem.costs)
        most += sum(float(m[np.isfinite(m)].max()) for m in problem.edges.values())
        self._penalty = -2.0 * most

    def walk(self, epsilon: float) -> _Episode:
        """An episode; each action is random with probability `epsilon`, otherwise the best known."""
        count = len(self._problem.costs)
        random_step = (self._random.random(count) < epsilon).tolist()
        drawn = self._random.random(count).tolist()
        best = self._values[:-1].argmax(axis=2).tolist()
        choices: list[int] = []
        for layer, size in enumerate(self._problem.sizes):
            state = choices[-1] if choices else 0
            if self._masks[layer]:
                options = np.flatnonzero(allowed(self._masks[layer], choices, size))
                known = self._values[layer, state, options]
                pick = int(drawn[layer] * len(options)) if random_step[layer] else int(known.argmax())
                choices.append(int(options[pick]))
            else:
                choices.append(int(drawn[layer] * size) if random_step[layer] else best[layer][state])
        taken = np.array(choices, dtype=np.intp)
        states = np.concatenate([[0], taken[:-1]]) + self._width * np.arange(count)
        successors = taken + self._width * np.arange(1, count + 1)
        return _Episode(choices, self._rewards(choices), states * self._width + taken, successors)

    def learn(self, episode: _Episode) -> None:
        """Applies equation 2 to all steps of an episode."""
        ahead = self._rows[episode.successors].max(axis=1)
        known = self._flat[episode.actions]
        self._flat[episode.actions] = known + _RATE * (episode.rewards + _DISCOUNT * ahead - known)

    def _rewards(self, choices: list[int]) -> Costs:
        rewards = np.array([-c[i] for c, i in zip(self._problem.costs, choices, strict=True)])
        for (u, v), matrix in self._problem.edges.items():
            rewards[v] -= matrix[choices[u], choices[v]]
        return np.where(np.isfinite(rewards), rewards, self._penalty)
