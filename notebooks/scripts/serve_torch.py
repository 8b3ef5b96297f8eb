"""The same as serve.py with PyTorch and transformers: serve_torch.py FOLDER TEXT ..."""

import sys

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder, *texts = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
with torch.inference_mode():
    logits = model(**tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")).logits
for text, row in zip(texts, logits, strict=True):
    print(("negative", "positive")[row.argmax()], "|", text)
