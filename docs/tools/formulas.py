"""Formulas as the docstrings write them, `dX/dz = sum_p f_p(theta_p(z), X)`, as MathML: no script, no font, no network.

A fenced block of the language `formula` is typeset line by line on the site, and remains plain text everywhere else.
"""

import re

from continua.report import mathml

FENCE = re.compile(r"^( *)```formula\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_SIGNS = (("<-", "←"), ("->", "→"), ("<=", "≤"), (">=", "≥"), ("...", "…"), (" o ", " ∘ "), (" (x) ", " ⊗ "),
          ("1{", "1_{"), ("{ ", '"{" '), (" }", ' "}"'))  # fmt: skip
_NAMES = {"om": "omega", "eps": "epsilon", "lam": "lambda", "mhat": "m̂", "vhat": "v̂"}


def typeset(text: str) -> str:
    """Every line of a formula in a row of its own; what wide gaps set apart may stand below each other."""
    rows = [re.split(r" {3,}", line.strip()) for line in text.splitlines() if line.strip()]
    return "".join(f'<div class="formula">{"".join(mathml(_prepare(part)) for part in row)}</div>' for row in rows)


def replace_fences(markdown: str) -> str:
    """A page with its fenced formulas typeset."""
    return FENCE.sub(lambda found: f"{found[1]}{typeset(found[2])}\n", markdown)


def _prepare(line: str) -> str:
    """What `mathml` reads: signs as signs, <a, b> as brackets, b1 with an index, roots and exponents grouped."""
    for plain, sign in _SIGNS:
        line = line.replace(plain, sign)
    line = re.sub(r"<(?=\S)([^<>]*?\S)>", r"⟨\1⟩", line)
    line = re.sub(r"\b[a-z]+\b", lambda word: _NAMES.get(word[0], word[0]), line)
    line = re.sub(r"\b(phi|[A-Za-z])(\d)\b", r"\1_\2", line)
    return _group(_group(line, "sqrt(", "sqrt"), "^(", "^")


def _group(line: str, opening: str, sign: str) -> str:
    """sqrt(a (b + c)) as sqrt{a (b + c)}: up to the bracket that closes the first one."""
    start, depth = line.find(opening), 0
    for place in range(start + len(opening) - 1, len(line)) if start >= 0 else ():
        depth += {"(": 1, ")": -1}.get(line[place], 0)
        if depth == 0:
            inner = line[start + len(opening) : place]
            return f"{line[:start]}{sign}{{{inner}}}{_group(line[place + 1 :], opening, sign)}"
    return line


_LEFT = re.compile(r"[\w(){}\[\],.|'~^/+<>-]+(?: [\w(){}\[\],.|'~^/+<>-]+){0,4} (?:=|~|->) ")
_END = re.compile(
    r": |\. |\.$|, (?=of |the |periodic|summed|trained|one |for |from |k_2 |phi1|phi_k|psi_k|G an |P the|eps |u the)"
    r"|, (?=x\^ )| (?=with |over |in an |for |taken |on the |of real |\(docs/|:)|$"
)
_WORDS = re.compile(r"\b(?!theta|beta|gamma|delta|zeta|kappa|lambda|norm|inner|outer|softmax|step|loss|mean|base|code"
                    r"|mask|start|ratio|until|hat|ceil|sqrt|sum|int|log|exp|cos|sin|embedding|output|stem|wrap|inputs"
                    r"|readout|velocity|source|edges|shift|features|share)[a-z]{4,}\b")  # fmt: skip


def split_formula(text: str) -> tuple[str, str]:
    """What a docstring begins with, if that is a formula, and what it says then."""
    text = text.replace("...", "…")
    end = _END.search(text)
    head = text[: end.start()] if end else ""
    head = head.rstrip(",; ")
    if not _LEFT.match(head) or "`" in head or _WORDS.search(head):
        return "", text
    rest = text[len(head) :].lstrip(" .:,;")
    return head, rest[:1].upper() + rest[1:] if text[len(head) : len(head) + 1] in ".:" else rest
