"""Formulas as the docstrings of this project write them, typeset as MathML: no script, no font, no request."""

import re
from html import escape

_TOKENS = re.compile(r'"[^"]*"|[A-Za-z]+|[α-ωΑ-Ω]|\d+(?:\.\d+)?|\S')
_GREEK: dict[str, str] = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "zeta": "ζ", "eta": "η",
    "theta": "θ", "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π",
    "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω",
    "Gamma": "Γ", "Delta": "Δ", "Theta": "Θ", "Lambda": "Λ", "Pi": "Π", "Sigma": "Σ", "Phi": "Φ",
    "Psi": "Ψ", "Omega": "Ω",
}  # fmt: skip
_LARGE = {"sum": "∑", "int": "∫", "prod": "∏"}
_OVER = {"bar": "¯", "hat": "^", "dot": "˙", "tilde": "~"}
_SIGNS = {"-": "−", "*": "·", "'": "′", "<": "<", ">": ">", "del": "∂", "nabla": "∇", "infty": "∞", "times": "×"}


def mathml(formula: str) -> str:
    """`a_i = frac{1}{2} sum_j e^{beta x_j}` as a block of MathML.

    Words: Greek letters; sum, int, prod; frac{a}{b}, sqrt{a}, bar{x}, hat{x}, dot{x}, tilde{x}; del, nabla, infty;
    `_` and `^` take one symbol or {a group}; "words in quotes" are text. Everything else stands for itself.
    """
    parser = _Parser(_TOKENS.findall(formula))
    return f'<math display="block">{parser.row(None)}</math>'


class _Parser:
    """Reads symbols from the left; every method gives the MathML of what it has read."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens[::-1]

    def row(self, end: str | None) -> str:
        parts = []
        while self.tokens and self.tokens[-1] != end:
            parts.append(self.scripted())
        if end is not None and self.tokens:
            self.tokens.pop()
        return f"<mrow>{''.join(parts)}</mrow>"

    def scripted(self) -> str:
        word = self.tokens[-1]
        base, scripts = self.atom(), {}
        while self.tokens and self.tokens[-1] in ("_", "^") and self.tokens[-1] not in scripts:
            place = self.tokens.pop()
            scripts[place] = self.atom()
        below, above = scripts.get("_"), scripts.get("^")
        if below and above:
            tag = "munderover" if word in _LARGE else "msubsup"
            return f"<{tag}>{base}{below}{above}</{tag}>"
        if below or above:
            tag = ("munder" if below else "mover") if word in _LARGE else ("msub" if below else "msup")
            return f"<{tag}>{base}{below or above}</{tag}>"
        return base

    def atom(self) -> str:
        if not self.tokens:
            return "<mrow></mrow>"
        token = self.tokens.pop()
        if token == "{":
            return self.row("}")
        if token == "frac":
            return f"<mfrac>{self.atom()}{self.atom()}</mfrac>"
        if token == "sqrt":
            return f"<msqrt>{self.atom()}</msqrt>"
        if token in _OVER:
            return f'<mover accent="true">{self.atom()}<mo>{_OVER[token]}</mo></mover>'
        if token in _LARGE:
            return f'<mo movablelimits="false">{_LARGE[token]}</mo>'
        if token.startswith('"'):
            text = token.strip('"')
            return f"<mtext>{escape(text)}</mtext>" if text.strip() else '<mspace width="1.6em"/>'
        if token in _SIGNS:
            return f"<mo>{escape(_SIGNS[token])}</mo>"
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{escape(_GREEK.get(token, token))}</mi>"
        still = ' stretchy="false"' if token in "()[]⟨⟩|" else ""
        return f"<mo{still}>{escape(token)}</mo>"
