#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds words that a reader would not search for. One thing has one name in the tree, which is the standard term of the field.

    check-words.py [--count] [--self-test] [ROOT] [PATH...]

Prints FILE:LINE: WORD -> what to say: LINE. --count prints the number of words of each folder instead. PATH limits the search. A word in its
plain English sense is allowed by its phrase below.
"""

import collections
import pathlib
import re
import subprocess
import sys

# word, what to say instead, phrases in which it is right
WORDS = [
    (r"\ba start\b", "startup, recovery", r"start of (the|a|an|its)\b"),
    (r"\bglanc(e|es|ed|ing)\b", "probe", None),
    (r"\bheard of\b|\bunheard\b", "seen, unseen", None),
    (r"\b(the|a|its|another|earlier|later) looks?\b", "scan", None),
    (r"\b[Ll]ook-ups?\b", "lookup (the noun); look up (the verb)", None),
    (r"\breckon(s|ed|ing)?\b", "estimate, compute", None),
    (r"\bguess(es|ed|ing)? at\b", "estimate", None),
    (r"\b(is|are|was|were|been|be) told\b|\btold (of|that|by|about)\b|\btells? (it|the loop|them)\b(?! apart)", "acknowledged, reported, seen; name the actor", None),
    (r"\b(is|are|was|were|be|been) gone\b|(?<=[ (])gone[,.;:)]", "dead, removed, closed, freed", None),
    (r"\bleft aside\b|\bleav(es?|ing) (it|one|a volume|the volume) aside\b|\b(is|are|was|were|while) (away|aside)\b", "offline, bypassed, suspended", None),
    (r"\blet go of\b|\blets? go\b|\bletting go\b", "released, closed, freed", None),
    (r"\boutbox(es)?\b", "completion queue", None),
    (r"\bdisposals?\b", "fd closer", None),
    (r"\bthreads? for calls\b", "blocking-call thread", None),
    (r"(?i)\bpatience\b|\w*_patience\w*|\bpatience_\w+", "head-of-line timeout; timeout", None),
    (r"\bread_ahead\w*|\bwritten ahead\b|\bsegments ahead\b", "prefetch; preformatted", r"\bread_ahead_size\b"),
    (r"\b(?!re)(puts?|with) memory under\b|\bmemory under it\b", "populated, pre-faulted", None),
    (r"\bdonat(e|es|ed|ing|ion|ions)\b|\w*_donat\w*|\bdonat\w*_\w*", "register, registered buffer", r"names that programs written before the rename use|DONATE = 18|self(, \*args, \*\*how: self)?\.register\(|lambda self"),
    (r"\bwithdr(aw|aws|awn|ew|awing|awal|awals)\b|\w*_withdraw\w*|\bwithdraw_\w*", "unregister", r"WITHDRAW = 19|lambda self"),
    (r"\blanes?\b|\w*_lanes?(?=_|\b)\w*|\blanes?_\w+", "staging", r"self\.staging|LANE = 4|lambda self|word_at|of\[lane\]|LANES|2 \* lane|\+ lane \*|words of one lane|lane of its own|unsigned lane"),
    (r"\bkvcache_drain\b|\b(completion|completions) (is|are|to be) drained\b", "reap", None),
    (r"\b(in|of|at|until|begins?|ends?) (a|an|this|the next|the same|one|every|each|its) turn\b(?! of (the|a) conversation)|\bturns? of the loop\b", "iteration", None),
    (r"\b[Ww]hoever\b", "name the actor: the caller, the client, the thread", None),
    (r"\b[Nn]obody\b", "nothing, no client, no request, no thread", r"\buid 65534\b|\buser nobody\b|`nobody`|\"nobody\"|'nobody'|nobody:"),
    (r"\b[Ss]omebody\b", "a client, a waiter, the caller", None),
    (r"\bwho waits?\b|\b[Ww]ho (asks|wants|has|needs)\b", "a waiter; name the actor", r"[Ww]ho may\b"),
    (r"\bmakes? no sense\b|\bmade no sense\b", "is invalid; say why", None),
    (r"\bby halves\b", "by binary search", None),
    (r"\bhomes?\b(?= (is|volume|path|elsewhere)|,? drawn)|\bwhose home\b|\bchunk's \*?home\b", "placement", None),
    (r"\b[Pp]aths? (that )?(is|are|was|were) (bypassed|suspended|resumed|offline|hung)\b|\b[Pp]aths? bypassed\b|\bpaths? of the store\b|\bstore paths?\b(?! is %)", "volume", None),
    (r"\b[Mm]end(s|ed|ing)?\b", "fix, repair", None),
    (r"\b[Ss]torage engines?\b|\b(engine|engines) of the shared tier\b|\b(check|scrub|Scrub) the engine\b", "back end (of the shared tier)", None),
    (r"\bof late\b", "recent, recently", None),
    (r"\bby and by\b", "gradually", None),
    (r"\bnot any more\b", "no longer; or state the change", None),
    (r"\bsave for\b", "except", r"save for later"),
]
SKIP = re.compile(r"^(LICENSE$|tests/golden/|tests/fuzz/corpus/|\.git|tests/check-(words|comments)\.py$)")


def literals(pattern):
    """Returns texts of which every match of the pattern contains one, in lower case: a run of letters for each alternative, or None if an
    alternative has none. Searching for these first is a hundred times as fast."""
    pattern = re.sub(r"\\[a-zA-Z][*+?]?|\\.|\[[^\]]*\][*+?]?", " ", pattern)
    while "(" in pattern:
        pattern = re.sub(r"\([^()]*\)[*+?]?", " ", pattern)
    pattern = re.sub(r".[*+?]", " ", pattern)
    longest = [max(re.findall(r"[a-z_'-]+", part.lower()), key=len, default="") for part in pattern.split("|")]
    return longest if all(len(word) > 2 for word in longest) else None


RULES = [(literals(a), re.compile(a), b, c and re.compile(c)) for a, b, c in WORDS]


def may_match(rules, text):
    low = text.lower()
    return [r for r in rules if r[0] is None or any(word in low for word in r[0])]


def hits(text):
    """Yields (number of the line, word, advice, line). Phrases are also found across the line ends of a comment."""
    rules = may_match(RULES, text)
    if not rules:
        return
    lines = text.split("\n")
    for i, line in enumerate(lines):
        tail = re.sub(r"^\s*(\*(?!/)|//|#|\"|')?\s*", "", lines[i + 1]) if i + 1 < len(lines) else ""
        both = line + " " + tail
        for _, rule, advice, right in may_match(rules, both):
            for m in rule.finditer(both):
                if m.start() >= len(line):
                    continue
                around = both[max(0, m.start() - 40):m.end() + 40]
                if right and right.search(around):
                    continue
                yield i + 1, m[0], advice, line.strip()


def self_test():
    bad = ["a start takes memory", "/* Nobody else may. */", "whoever asks", "it is told that", "the client is gone",
           "the lane of a client", "wire_donate(x)", "a donated region", "kvcache_region_withdraw", "found by halves",
           "what makes no sense", "it is let\n * go of", "a path is bypassed", "somebody waits", "in this turn", "the outbox", "a look-up", "PATIENCE_MS = 100", "Whoever asks", "a restart mends it",
           "with its path bypassed", "reads of late", "by and by", "is not any more"]
    good = ["at the start of the file", "user nobody may not", "from startup on", "users in turn", "the path of the file", "kvcache_reap(kv)",
            "a staging area", "lane = lambda self, size=0: self.staging(size)", "the volume is up", "nothing",
            "the end of each path", "dispatch_event(loop)", "at the start, it is empty", "a counter tells them apart", "any more than two"]
    wrong = [t for t in bad if not list(hits(t))] + [t for t in good if list(hits(t))]
    for t in wrong:
        print(f"self-test: {t!r}: {'found nothing' if t in bad else [h[1] for h in hits(t)]}")
    return 1 if wrong else 0


def main():
    arguments = sys.argv[1:]
    if "--self-test" in arguments:
        return self_test()
    count = "--count" in arguments
    arguments = [a for a in arguments if a != "--count"]
    root = pathlib.Path(arguments[0] if arguments else ".")
    only = arguments[1:]
    found = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True)
    if found.returncode != 0:
        print("not a checkout: nothing to check")
        return 77
    folders, total = collections.Counter(), 0
    for name in found.stdout.split("\n")[:-1]:
        if SKIP.match(name) or (only and not any(name.startswith(o) for o in only)):
            continue
        path = root / name
        try:
            text = path.read_text()
        except (UnicodeDecodeError, OSError):
            continue
        if "\0" in text:
            continue
        for number, word, advice, line in hits(text):
            total += 1
            folders[str(pathlib.PurePath(name).parent)] += 1
            if not count:
                print(f"{name}:{number}: {word} -> {advice}: {line[:140]}")
    if count:
        for folder, n in sorted(folders.items()):
            print(f"{n:6} {folder}")
    print(f"{total} words that a reader would not grep for")
    return 1 if total else 0


sys.exit(main())
