"""The page "Will it fit?": the memory explorer of notebook 02 without a kernel.

`fit.json` holds the predictions (`fit_grid.py` writes it), `static/fit.js` shows the one that is
chosen. Nothing is asked of a server, so the page also works as a file.
"""

import html
import json
import re
from pathlib import Path

from helpers.models import catalogue

FILE = Path(__file__).with_name("fit.json")
DEFAULT = {"model": "bert-base", "batch": 32, "length": 512}  # else the first, as in the widget
LABELS = {
    "model": "Model",
    "mode": "Task",
    "dtype": "Number format",
    "lever": "Lever",
    "batch": "Batch (texts)",
    "length": "Length (tokens a text)",
}
PARTS = {
    "weights": "the model",
    "gradients": "one for each weight that is trained",
    "optimizer": "AdamW's two averages for each of these, and what a step computes with",
    "activations": "what the layers compute; training keeps it for the backward pass",
    "inputs": "token ids, mask and labels",
    "workspace": "of cuBLAS, for matrix products",
    "allocator": "what PyTorch takes more, since it takes memory in blocks",
    "context": "CUDA itself; 400 MiB are assumed, it is 300 to 600 by GPU and driver",
}
EXAMPLES = {4: "GTX 1650", 8: "RTX 3070, RTX 4060", 12: "RTX 3060, RTX 4070", 16: "T4, V100"}
EXAMPLES |= {24: "RTX 3090, RTX 4090, L4", 80: "A100, H100"}
# How each lever is pulled, with the functions of notebook 02's recipe.
LEVERS = {
    "none": [],
    "checkpointing": ["checkpoint_layers(model)"],
    "6 layers frozen": ["freeze_part(model, 6)"],
    "only the head trained": ['freeze_part(model, "body")'],
    "LoRA, all linear layers": ["model = add_adapters(model, 8)"],
    "LoRA and checkpointing": ["checkpoint_layers(model)", "model = add_adapters(model, 8)"],
}
LOAD = "model = AutoModelForSequenceClassification.from_pretrained(\n    "
INPUTS = (
    "# A batch is a dict of input_ids, attention_mask and labels; BATCH texts of LENGTH tokens."
)
STATIC_SIZES = ((1, 512), (8, 128), (32, 128), (8, 512), (32, 512))  # without JavaScript
TEXT = """# Will it fit?

How much GPU memory one step of a BERT classifier takes: choose, and read what it takes by part and
which GPU it fits. The address keeps the choice, so that a link shows it to others. Notebook
[02](notebooks/02_gpu_memory.ipynb) explains the parts and the levers; its memory explorer gives
these numbers, at any length. (SciBERT takes about what BERT-base does.)

```{raw} html
PANEL
```

## How far to trust it

The step itself was run on tensors without data, and every block that PyTorch would allocate was
added up (torch VERSION). The model of the GPU follows PyTorch's source: fused attention, an
allocator that rounds up, no fragmentation, and 400 MiB for CUDA itself. It has not been confirmed
on a GPU yet. `measure_peak` in the [recipe](recipes/training_memory.md) measures your own step.

**What is held back.** A verdict of *fits* leaves a tenth of the memory free, and *tight* uses it. A
GPU has less to give than its name says (a T4 of 16 GB shows about 15 GiB), a desktop and other
programs take their share, and blocks of unequal sizes leave gaps between them. Where texts differ
in length, the batch with the longest decides.
"""


def read() -> dict:
    """Return the stored predictions."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def own_code(mode: str, dtype: str, lever: str) -> str:
    """Return what does a choice in a program, with MODEL, BATCH and LENGTH to be put in."""
    weights = "bfloat16" if dtype == "bfloat16 weights" else "float32"
    mixed = dtype == "mixed precision"
    load = f'{LOAD}"MODEL", dtype=torch.{weights}\n)'
    library = "from transformers import AutoModelForSequenceClassification\n"
    if mode == "inference":
        context = "torch.no_grad()" + mixed * ', torch.autocast("cuda", torch.bfloat16)'
        lines = ["import torch", library, load, 'model.to("cuda").eval()', INPUTS]
        return "\n".join([*lines, f"with {context}:", "    logits = model(**batch).logits"])
    calls = sorted({re.search(r"\w+(?=\()", line)[0] for line in LEVERS[lever]})
    recipe = f"from training_memory import {', '.join([*calls, 'training_step'])}"
    optimizer = "SGD" if mode.endswith("SGD") else "AdamW"
    return "\n".join(
        [
            "import torch",
            f"{recipe}  # notebook 02's recipe",
            library,
            load,
            'model.to("cuda").train()',
            *LEVERS[lever],
            "trained = [parameter for parameter in model.parameters() if parameter.requires_grad]",
            f"optimizer = torch.optim.{optimizer}(trained, lr=1e-5)",
            INPUTS,
            f"loss = training_step(model, batch, optimizer{mixed * ', dtype=torch.bfloat16'})",
        ]
    )


def choices(data: dict) -> dict[str, list]:
    """Return what can be chosen, by control."""
    options = {kind: list(found) for kind, found in data["options"].items()}
    return {"model": data["model"], **options, "batch": data["batch"], "length": data["length"]}


def controls(data: dict) -> str:
    """Return a menu for each choice, with its label."""
    made = []
    for name, values in choices(data).items():
        listed = ""
        for value in values:
            slug = re.sub(r"\W+", "-", str(value).lower())
            chosen = " selected" if value == DEFAULT.get(name, values[0]) else ""
            listed += f'<option value="{slug}"{chosen}>{value}</option>'
        menu = f'<select id="fit-{name}" name="{name}">{listed}</select>'
        made.append(f'<div><label for="fit-{name}">{LABELS[name]}</label>{menu}</div>')
    return "\n".join(made)


def static_table(data: dict) -> str:
    """Return BERT-base's totals for some sizes, for browsers without JavaScript."""
    heads = "".join(f"<th>{batch} × {length}</th>" for batch, length in STATIC_SIZES)
    rows = [f"<tr><th>BERT-base, float32: texts × tokens</th>{heads}</tr>"]
    kinds = [("training, AdamW", lever) for lever in data["options"]["lever"]]
    for mode, lever in [*kinds, ("inference", "none")]:
        peaks = data["peaks"][f"bert-base | {mode} | float32 | {lever}"]
        cells = ""
        for batch, length in STATIC_SIZES:
            at = data["batch"].index(batch) * len(data["length"]) + data["length"].index(length)
            parts = (peaks[name] for name in data["terms"])
            units = sum(part[at] if isinstance(part, list) else part for part in parts)
            cells += f"<td>{units * data['unit'] / 2**30:.2f} GiB</td>"
        rows.append(f"<tr><th>{mode}; lever: {lever}</th>{cells}</tr>")
    return "<table>" + "\n".join(rows) + "</table>"


def page() -> str:
    """Return the page as Markdown, with its data."""
    data = read()
    panel = Path(__file__).with_name("fit.html").read_text(encoding="utf-8")
    codes = {}
    for mode, dtype, lever in sorted({tuple(key.split(" | ")[1:]) for key in data["peaks"]}):
        codes[f"{mode} | {dtype} | {lever}"] = own_code(mode, dtype, lever)
    hub = {name: catalogue.find(name).hub_id for name in data["model"]}
    shown = data | {"parts": PARTS, "examples": EXAMPLES, "codes": codes, "hub": hub}
    shown["choices"] = choices(data)
    # "</" would end the script; "<" inside of JSON's strings may be written so.
    text = json.dumps(shown, separators=(",", ":")).replace("<", "\\u003c")
    for mark, filling in {
        "CONTROLS": controls(data),
        "STATIC": static_table(data),
        "DATA": text,
    }.items():
        panel = panel.replace(f"<!-- {mark} -->", filling)
    version = html.escape(data["versions"]["torch"].partition("+")[0])
    return TEXT.replace("PANEL", panel).replace("VERSION", version)
