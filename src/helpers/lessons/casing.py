"""Does a tokenizer fit its vocabulary? Old repositories do not say (notebook 07)."""


def require_words(tokenizer) -> None:
    """Refuse a vocabulary of special tokens only, to which every word is unknown."""
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(
            "the vocabulary holds no words: save the tokenizer beside the model "
            "(tokenizer.save_pretrained)"
        )


def check_casing(tokenizer) -> str:
    """Return "cased" or "uncased", as the words of the vocabulary are.

    Raises:
        ValueError: If the tokenizer treats them as the other, as it does where a repository has no
            tokenizer settings: the default lower-cases everything.
    """
    require_words(tokenizer)
    added = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}  # never lower-cased
    words = sorted(set(tokenizer.get_vocab()) - added)
    capitals = [word for word in words if word.lower() != word]
    cased = len(capitals) > len(words) / 100  # not for a stray symbol, as that of the angstrom
    known = capitals if cased else [word.capitalize() for word in words if word.isalpha()]
    word = "Hello" if "Hello" in known else max(known, key=len, default="Hello")
    pieces = tokenizer.tokenize(word)
    if cased == (pieces == tokenizer.tokenize(word.lower())):
        found = f"the vocabulary has {len(capitals):,} words with capitals"
        fix = f"load the tokenizer with do_lower_case={not cased}"
        raise ValueError(f"{found}, but {word!r} becomes {pieces}: {fix}")
    return "cased" if cased else "uncased"
