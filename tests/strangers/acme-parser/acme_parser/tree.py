"""Heads from the scores of arcs, in tensors that export: the maximum spanning tree."""

import torch
from torch import Tensor

from seqpipe.nn.loops import State, scan, while_loop

LOWEST = -1e9  # the score of an arc that cannot be


def spanning_tree(arcs: Tensor, mask: Tensor) -> Tensor:
    """Return the highest-scoring tree in which exactly one word is the root (Chu and Liu 1965; Edmonds 1967).

    In each round every component of words chooses its best arc from another component, and components on a cycle
    become one; arcs of the root are left out until one component is left, which then chooses the best of them. A row
    of T words needs T rounds at most. Expansion goes through the rounds in reverse: a component keeps the arc
    that it chose unless a larger one was entered inside it.

    Args:
        arcs: (B, T, 1 + T), the scores of each word's heads: of the root, then of each word.
        mask: (B, T).

    Returns:
        (B, T) int64: positions, -1 for the root.
    """
    word_pairs = _word_pairs(mask)
    position = torch.arange(mask.shape[1], device=mask.device)

    def contract(state: State, row: State) -> tuple[State, State]:
        words, root, component = state  # (B, T, T), (B, T), (B, T): each word's component is named by a word
        outside = word_pairs & (component[:, :, None] != component[:, None, :])
        connected = ~outside.any(2).any(1, keepdim=True)  # (B, 1): one component is left
        best, head = torch.where(outside, words, LOWEST).max(2)  # (B, T): the arc into each word
        best = torch.where(connected, root, best)
        member = (component[:, None, :] == position[:, None]) & mask[:, None, :]  # (B, C, T)
        gain, entry = torch.where(member, best[:, None, :], LOWEST).max(2)  # (B, C): the arc into each component
        source = torch.where(connected, -1, head.gather(1, entry))  # (B, C)
        paid = gain.gather(1, component)  # (B, T): another arc into the component replaces this one
        parent = component.gather(1, source.clamp(min=0))  # (B, C)
        merged = _contract_cycles(parent).gather(1, component)
        return (words - paid[:, :, None], root - paid, merged), (component, entry, source)

    def expand(state: State, row: State) -> tuple[State, State]:
        heads, attached = state  # (B, T), (B, T) bool
        component, entry, source = row
        member = component[:, None, :] == position[:, None]  # (B, C, T)
        entered = (member & attached[:, None, :]).any(2)  # (B, C)
        attach = (entry.gather(1, component) == position) & ~entered.gather(1, component) & mask
        heads = torch.where(attach, source.gather(1, component), heads)
        return (heads, attached | attach), (attach,)

    alone = torch.where(mask, position, 0)  # padding belongs to the first component, where nothing asks for it
    words = torch.where(word_pairs, arcs[:, :, 1:], LOWEST)
    start = (words, torch.where(mask, arcs[:, :, 0], LOWEST), alone)
    rounds = torch.zeros_like(mask.transpose(0, 1))  # (T, B): one step a word
    _, history = scan(contract, start, (rounds,))
    (heads, _), _ = scan(expand, (torch.zeros_like(alone), torch.zeros_like(mask)), history, reverse=True)
    return heads


def _word_pairs(mask: Tensor) -> Tensor:  # (B, T) -> (B, T, T): a word, and another word as its head
    position = torch.arange(mask.shape[1], device=mask.device)
    return mask[:, :, None] & mask[:, None, :] & (position[:, None] != position)


def _contract_cycles(parent: Tensor) -> Tensor:
    """Rename each node on a cycle to the least node of the cycle; parent (B, C) -> (B, C)."""
    node = torch.arange(parent.shape[1], device=parent.device).expand_as(parent)

    def go_on(distance: Tensor, ancestor: Tensor, least: Tensor) -> Tensor:
        return distance < parent.shape[1]

    def double(distance: Tensor, ancestor: Tensor, least: Tensor) -> State:
        return distance * 2, ancestor.gather(1, ancestor), torch.minimum(least, least.gather(1, ancestor))

    # least: of the nodes from a node on its way to its ancestor, that one left out
    one = torch.ones((), dtype=torch.int64, device=parent.device)
    _, ancestor, least = while_loop(go_on, double, (one, parent.clone(), node.clone()))
    on_cycle = (ancestor[:, None, :] == node[:, :, None]).any(2)  # an ancestor as far as C steps lies on a cycle
    return torch.where(on_cycle, least, node)
