"""Checks for the exercises of notebook 02 (GPU memory)."""

import traceback
from collections.abc import Callable
from typing import Any

from helpers.exercises import exercise
from helpers.exercises.tiny_models import new_classifier
from helpers.lessons.fake_gpu import FakeGPU

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers.models.bert.modeling_bert import BertEmbeddings

WEIGHTS = 109_483_778  # of BERT-base with a head for two labels


@exercise
def check_02_1(answer: Callable[[dict[str, torch.Tensor], str], Any]) -> str | None:
    """Run a function that trains all of BERT-base once on 32 texts, inside a GPU of 4 GiB."""
    tokens, steps = [], []

    def on_forward(module, _, out):
        if isinstance(module, BertEmbeddings) and module.training and torch.is_grad_enabled():
            tokens.append(out.shape[0] * out.shape[1])

    def on_step(optimizer, *_):
        every = [p for group in optimizer.param_groups for p in group["params"]]
        in_32_bit = [p for p in every if p.grad is not None and p.element_size() == 4]
        steps.append(sum(p.numel() for p in in_32_bit))

    hooks = [register_module_forward_hook(on_forward), register_optimizer_step_pre_hook(on_step)]
    try:
        with FakeGPU(4, pretend=True) as gpu:
            ids = torch.ones(32, 512, dtype=torch.long)
            batch = {"input_ids": ids, "attention_mask": ids.clone(), "labels": ids[:, 0].clone()}
            answer(batch, gpu.device)
    except torch.OutOfMemoryError as error:
        return f"out of memory in `{traceback.extract_tb(error.__traceback__)[1].line}`"
    finally:
        for hook in hooks:
            hook.remove()
    if sum(tokens) != 32 * 512:
        return f"the model was trained on {sum(tokens):,} tokens, not on 32 x 512"
    if len(steps) != 1:
        return f"the optimizer took {len(steps)} steps, not one for all 32 texts"
    if steps[0] < WEIGHTS:
        return f"{steps[0]:,} of {WEIGHTS:,} weights were trained in float32, not all"
    return None


@exercise
def check_02_2(answer: Callable[[nn.Module, list[dict]], Any]) -> str | None:
    """Check a function that leaves the gradients of one large batch in the model."""
    ids, labels = torch.arange(24).reshape(6, 4), torch.tensor([0, 1, 1, 0, 1, 1])
    whole, pieces = new_classifier(), new_classifier()
    whole(input_ids=ids, labels=labels).loss.backward()
    # Texts whose activations wait for backward(), now and at every forward pass.
    waiting, most = [], []
    pieces.bert.embeddings.register_forward_hook(lambda module, _, out: waiting.append(len(out)))
    pieces.register_forward_hook(lambda *_: most.append(sum(waiting)))
    pieces.classifier.bias.register_post_accumulate_grad_hook(lambda _: waiting.clear())
    answer(pieces, [{"input_ids": ids[i : i + 2], "labels": labels[i : i + 2]} for i in (0, 2, 4)])
    pairs = list(zip(whole.parameters(), pieces.parameters(), strict=True))
    if any(not torch.equal(a, b) for a, b in pairs):
        return "the weights have changed: only gradients were asked for, no step of the optimizer"
    if any(b.grad is None for a, b in pairs):
        return "the model has no gradients afterwards: call backward() for every micro-batch"
    wanted, got = (torch.cat([p.grad.flatten() for p in side]) for side in zip(*pairs, strict=True))
    if torch.allclose(got, 3 * wanted, atol=1e-5):
        return "the gradients are 3 times too large: each loss is a mean, and means do not add up"
    if not torch.allclose(got, wanted, atol=1e-5):
        return "the gradients are not those of the large batch: does every micro-batch count alike?"
    if max(most) > 2:
        texts = f"the activations of {max(most)} texts are alive at once"
        return f"{texts}: call backward() before the next micro-batch"
    return None
