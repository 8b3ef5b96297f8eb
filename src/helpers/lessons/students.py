"""A last layer that computes only the token which a classifier reads (notebook 06)."""

import torch
from transformers import BertForSequenceClassification
from transformers.models.bert.modeling_bert import BertAttention, BertLayer


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
