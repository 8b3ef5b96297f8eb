"""Small BERT models with random weights that notebooks 03 and 04, and exercises, take apart."""

from helpers.models import inspection

import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

_SIZES = {"vocab_size": 100, "max_position_embeddings": 64, "hidden_size": 32}
_SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def new_model() -> BertModel:
    """Build a small encoder in eval mode, the same each time; all of its inputs matter."""
    return tiny_bert(initializer_range=0.5)


@torch.inference_mode()
def run_on(device: str) -> torch.Tensor:
    """Return what the small encoder computes on a device for two texts, one with padding."""
    ids = torch.arange(5, 23, device=device).view(2, 9)
    return new_model().to(device)(ids, (ids < 20).long()).last_hidden_state.cpu()


def new_classifier() -> BertForSequenceClassification:
    """Build a small BERT with a head for two labels in eval mode, the same each time."""
    return tiny_bert(kind=BertForSequenceClassification)


def tiny_bert(seed: int = 0, kind: type = BertModel, **changes) -> BertModel:
    """Build a BERT of 2 layers, 32 wide, in eval mode; changes are those of its config."""
    with inspection.seeded(seed):
        return kind(BertConfig(**_SIZES | changes)).eval()
