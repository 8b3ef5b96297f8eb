"""Explain a device error."""

import re


def _stayed(argument: str | None, at: str, rest: str) -> str:
    """Says which side did not move, given an operation's argument, its device and the device of the others."""
    is_input, is_weight = (
        argument in ("input", "index", "indices", "mat1"),
        argument in ("weight", "bias", "mat2"),
    )
    if "cpu" not in (at.lower(), rest.lower()):
        return "Both have been moved, to different devices: choose one for all."
    if not is_input and not is_weight:
        return (
            "Whatever is on cpu did not move: audit(model) and check_call(model, inputs) name it."
        )
    if is_input == (at.lower() == "cpu"):
        return "The model moved and the inputs did not: move both, or neither."
    return "The inputs moved and the model did not: move both, or neither."


# How torch 0.4 to 2.13 word two devices in one operation: which argument, where it is (AT), where
# the REST is.
_DEVICE = r"(?:cpu|gpu|cuda|hip|mps|meta|xla|xpu|hpu|npu|privateuseone)(?::\d+)?"


_TWO_DEVICES = (
    r"but got (?P<arg>\w+) is on AT, different from other tensors on REST",
    r"two (?:different )?devices,? REST(?:,| and) AT(?:!.*for argument (?P<arg>\w+))?",
    r"Tensor for .*?'?(?P<arg>\w+)'? is on AT,? .*?expected .*?on REST",
    r"Expected object of \D+? REST but (?:got|found) \D+? AT for argument #\d+ '(?P<arg>\w+)'",
    r"(?P<arg>indices) should be either on AT or on the same device as the indexed tensor \(REST",
    r"(?P<arg>input)\(device='AT'\) and weight\(device=REST",
    r"(?P<arg>Input) type \(AT\) and (?:weight|bias) type \(REST\)",
    r"expected '(?P<arg>\w+)' to be an? REST tensor, but got tensor on AT",
    r"found (?P<arg>input) tensor at AT and \w+ tensor at REST",
    r"(?P<arg>)Tensor on device AT is not on the expected device REST!",
)


_OTHER_ERRORS = {
    "must be on the current device": "An embedding's table and its indices (the token ids) are on different devices; "
    "this old text does not say which. Mostly the inputs moved and the model did not; check_call(model, inputs) says.",
    r"same device|placeholder storage|them on device|different GPUs|XLA tensor|expected (a|type) '?cuda|"
    r"invalid combination.*cuda.*cpu|for generator": "One operation met tensors on two devices (a Mac has two: CPU and "
    "MPS). audit(model) and check_call(model, inputs) name what did not move; random generators have a device, too.",
    "meta tensor|convert meta": "A tensor is on the meta device: a shape without data, not loaded and not computed. "
    "move() lists such tensors by name; to_empty() would only hide them behind garbage.",
    "scalar type|same dtype|type .* should be the same|implemented for 'Half'|float64 dtype": "Not the device but the "
    "type of the numbers (dtype) is wrong there: model.float() and inputs of the same type cure most cases.",
    "invalid device ordinal|device < num_gpus|invalid device id": "There is no card of that number here. Cards that "
    "CUDA_VISIBLE_DEVICES makes visible are renumbered from 0; set it before torch starts CUDA.",
    "not compiled with|not linked with|no kernel image|not currently implemented for|could not run": "This build of "
    "torch cannot use that device, at least not for this: see machine.cuda_status().",
    "(NVIDIA|CUDA) driver|no CUDA GPUs|when none is available|no CUDA-capable|CUDA unknown error|no GPUs found": "torch"
    " finds no usable GPU: machine.cuda_status() says why.",
    "device type at start|invalid device|string must not be empty|index must|specified index": "That is not the name "
    "of a device: resolve_device() lists those that are.",
    "deserialize object on|restore data location": "The file was saved from a GPU: torch.load(..., map_location='cpu') "
    "reads it anywhere.",
    "to numpy": "NumPy reads the CPU's memory only: call .cpu() first.",
    "forked subprocess|can be pinned": "Processes that load data deal in CPU tensors: move each batch in the loop.",
    "has no attribute 'to'": "A dict or list cannot move itself, its tensors can: use move(inputs, device).",
    "modules offloaded|4-bit": "Another library has placed this model for good: leave it, and give it its inputs.",
    "NCCL|duplicate GPU|no backend type": "This is about several processes, each with a card of its own and its "
    "tensors on it, not about one model's placement.",
    r"\bout of memory(?! slots)|allocate memory|not enough memory|unable to allocate|invalid buffer size|ALLOC_FAILED|"
    "MemoryError": "The placement is right, the device is too small: take shorter texts or smaller batches.",
    r"index out of range in self|target -?\d+ is out of bounds|srcIndex": "Not placement: a token id, position or "
    "label lies beyond the model's table. Do tokenizer and model belong together, is the text within 512 tokens?",
    "device-side assert|CUBLAS_STATUS|cuDNN error|illegal memory access|launch failure": "Mostly not placement: a "
    "token id or label is out of range, or memory ran out. The same call on the CPU gives the true message; restart "
    "the kernel before you use the GPU again.",
}


def explain(error: BaseException | str) -> str:
    """What a device error means and what to do, in a sentence or two.

    `error` is the exception or its text.

    Knows the wordings of torch 0.4 to 2.13. For other errors it says that it does not know them.
    """
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    for device, old in {
        "cuda": r"cuda\.\w+Tensor|CUDA\w+Type",
        "mps": r"mps\.\w+Tensor|MPS\w+Type",
    }.items():
        text = re.sub(
            rf"(?:torch\.)?(?:{old})", device, text
        )  # before 1.5 a tensor's type told its device
    text = re.sub(r"torch\.\w+Tensor|CPU\w+Type", "cpu", text)
    for wording in _TWO_DEVICES:
        wording = wording.replace("AT", f"(?P<at>{_DEVICE})").replace(
            "REST", f"(?P<rest>{_DEVICE})"
        )
        found = re.search(wording, text, re.DOTALL | re.IGNORECASE)
        if found and (
            found["at"] != found["rest"] or found["arg"] == "indices"
        ):  # else it is about types of numbers
            argument, at, rest = (found["arg"] or "").lower(), found["at"], found["rest"]
            if argument == "indices":  # the text offers "cpu or ...", so they are on neither
                at = "another device"
            elif argument == "self" and re.search("index_select|embedding|addmm", text):
                argument = "weight"  # there it is the table or the bias
            what = repr(argument) if argument else "a tensor"
            return f"Two devices in one operation: {what} is on {at}, the rest on {rest}. {_stayed(argument, at, rest)}"
    for wording, meaning in _OTHER_ERRORS.items():
        if re.search(wording, text, re.IGNORECASE | re.DOTALL):
            return meaning
    return "Not a device error that this tutorial knows: read its last line, and check audit(model) all the same."
