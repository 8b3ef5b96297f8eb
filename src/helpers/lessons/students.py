"""Students of a classifier: made of its layers, with a last layer that computes one token."""

import re
from collections.abc import Sequence

from helpers.models import inspection
from helpers.recipes.distill import cut_student

import torch
from transformers import BertForSequenceClassification, PreTrainedModel
from transformers.models.bert.modeling_bert import BertAttention, BertLayer


def make_student(
    teacher: PreTrainedModel, layers: Sequence[int] | None, **config
) -> tuple[PreTrainedModel, dict[str, str]]:
    """Make a smaller model of the teacher's class, in eval mode.

    Args:
        teacher: A model of transformers whose layers are called `.layer.0.` and so on.
        layers: The teacher's layers that become the student's 0, 1, ...; embeddings and head are
            copied as well. None copies nothing: random weights, the same each time.
        config: With `layers=None`, settings that differ from the teacher's, such as its sizes.

    Returns:
        The student, and what was copied: a name in it -> the name in the teacher.
    """
    if layers is None:
        unknown = [name for name in config if not hasattr(teacher.config, name)]
        if unknown:
            raise ValueError(f"{type(teacher.config).__name__} has no setting {unknown[0]}")
        settings = type(teacher.config)(**teacher.config.to_dict() | config)
        with inspection.seeded():
            student = type(teacher)(settings)
        return student.to(teacher.device, teacher.dtype).eval(), {}
    depth = teacher.config.num_hidden_layers
    if config or not len(layers) or not all(0 <= layer < depth for layer in layers):
        message = f"give one or more of the teacher's layers, 0 to {depth - 1}, and no sizes"
        raise ValueError(f"layers {list(layers)} and {config}: {message}")
    student = cut_student(teacher, list(layers)).to(teacher.device, teacher.dtype).eval()
    copied, weights = {}, teacher.state_dict()
    for name, tensor in student.state_dict().items():
        copied[name] = re.sub(r"(?<=\.layer\.)\d+", lambda at: str(layers[int(at[0])]), name)
        assert torch.equal(tensor, weights[copied[name]]), name
    return student, copied


class FirstTokenLayer(BertLayer):
    """BERT's layer for the first token only, which attends to all; it has the same weights."""

    def __init__(self, config, layer_idx: int | None = None):
        super().__init__(config, layer_idx)
        # transformers' attention from one sequence to another: here from the first token to all.
        self.attention = BertAttention(config, layer_idx=layer_idx, is_cross_attention=True)

    def forward(self, hidden_states: torch.Tensor, attention_mask=None, *_, **__) -> torch.Tensor:
        """Turn hidden states (texts, tokens, width) into (texts, 1, width)."""
        mask = attention_mask if attention_mask is None else attention_mask[..., :1, :]
        first = hidden_states[:, :1]
        attended, _ = self.attention(
            first, encoder_hidden_states=hidden_states, encoder_attention_mask=mask
        )
        return self.feed_forward_chunk(attended)


def read_first_token(model: BertForSequenceClassification) -> BertForSequenceClassification:
    """Let the last layer compute only the token that the classifier reads, in place.

    The logits stay the same, for less work.

    Raises:
        TypeError: If the model may read other tokens.
    """
    if type(model) is not BertForSequenceClassification or model.config.is_decoder:
        name = type(model).__name__
        raise TypeError(f"this {name} may read all tokens: take a BertForSequenceClassification")
    layers = model.base_model.encoder.layer
    layer = FirstTokenLayer(model.config, len(layers) - 1).to(model.device, model.dtype)
    layer.load_state_dict(layers[-1].state_dict())  # refuses adapters and int8 weights
    for new, old in zip(layer.parameters(), layers[-1].parameters(), strict=True):
        new.requires_grad_(old.requires_grad)
    layers[-1] = layer.train(model.training)
    return model
