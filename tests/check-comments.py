#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts comments and docstrings whose first sentence has no subject, and checks the subjects of new commits.

A reader meets a comment alone: one that opens with "It", "They", "What" or "Of" cannot be understood without the code below it.
Each folder has a ceiling in tests/comment-ceilings.txt. The check fails above the ceiling, and also below it, so that a ceiling
is lowered with the commit that earns it and never rises again. A folder without a row may have no such comment.

    check-comments.py [ROOT]                                   compare every folder with its ceiling, and check commit subjects
    check-comments.py --list [ROOT] [FOLDER...]                print FILE:LINE: TEXT of each comment without a subject
    check-comments.py --write-ceilings [--allow-raise] [ROOT]  rewrite the table; raise a number only with --allow-raise
    check-comments.py --self-test

A commit subject reads `area: verb ...`, is imperative and has at most 72 characters. Commits newer than the row `base` of the
table are checked. Without their history, as in an archive or a shallow clone, this part is skipped.
"""

import argparse
import ast
import collections
import contextlib
import io
import pathlib
import re
import subprocess
import sys
import tempfile
import tokenize

TABLE = "tests/comment-ceilings.txt"
SKIP = re.compile(r"tests/golden/|tests/fuzz/corpus/|build[^/]*/|(.*/)?\.")
C_SUFFIXES = {".c", ".h", ".def", ".cu"}

# --- the first sentence ---

# These words never name a subject.
PRONOUNS = set("it they them its their what who whom whose whoever whatever of as so else others likewise same nor".split())
# These words introduce a noun ("these functions"), and stand for one only before a word of NO_NOUN.
DETERMINERS = {"those", "these", "both", "neither", "another", "one", "which", "the same", "the other", "the rest", "the latter",
               "the former"}
NO_NOUN = set("""is are was were be has have had may might must can cannot could will would should shall do does did
that which who whose when where while if than of in on at by for from with without to as and or not only also it they one ones
go goes come comes need needs hold holds run runs wait waits lie lies stand stands""".split())
IDIOM = re.compile(r"as an? (special case|exception|optimi[sz]ation|result|consequence|fallback|precaution|rule|last resort)\b"
                   r"|as of (linux|kernel|gcc|clang|glibc|version|v?\d)|both (the )?\w+ and \w+|neither \w+ nor \w+|one by one\b", re.I)
# A first word that is part of an identifier, a call, a path or an assignment is a name, whatever its spelling.
FIRST = re.compile(r"[\s*=~#-]*[(\"']*([A-Za-z]+)(?![\w`(\[]|->|::|[./]\w|\s*=[^=])")


def lacks_subject(text):
    """Returns whether a comment opens with a word that needs an earlier sentence."""
    first = FIRST.match(text)
    if not first or IDIOM.match(text.lstrip(" \n*=~#-")):
        return False
    opening = first[1].lower()
    words = [word.lower() for word in re.findall(r"[A-Za-z']+|[:.,;]", text[first.end():first.end() + 60])] + ["", ""]
    if opening == "the":
        opening = "others" if words[0] == "others" else f"the {words[0]}"
        words = [word for word in words[1:] if word[:1].isalpha()] + [""]
    if opening == "the rest" and words[0] == "of":
        return False
    if opening in DETERMINERS:
        return words[0] in NO_NOUN or words[0] in ("", ":", ".", ",", ";")
    return (opening == "but" and words[0] == "for") or (opening in PRONOUNS and words[0] != ":")


# --- the comments of a file ---

NOTICE = re.compile(r"SPDX-|Copyright|Licen[sc]ed under|clang-format (on|off)|(?i:noqa|pylint|type: ignore|fall ?through\b|-\*-)")
CODE = re.compile(r"[\w.\[\]>*&()-]+\s*[-+|&]?=[^=]|[{}#]|(if|for|while|switch)\s*\(|(return|struct|static|int|void|const|char)\b[^.,:]*;$"
                  r"|[\w.>-]+\([^)]*\);?$|[^.,:]*[=(>)][^.,:]*;$")
GRID = re.compile(r"^[|+]|^[-=]{3,}$|\s\|\s|\S {3,}\S.*\S {3,}\S|\t\S+\t")
C_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'|/\*(?P<block>.*?)\*/|//(?P<line>[^\n]*)', re.S)


def is_prose(text):
    """Returns whether a comment has three words or more and is neither a licence, nor a directive, nor a table, nor code."""
    head = text.strip().split("\n")[0].strip()
    if NOTICE.search(text[:400]) or GRID.search(head) or CODE.match(head):
        return False
    return len(re.findall(r"[A-Za-z][\w'-]*", text)) >= 3


def c_comments(source):
    """Yields (line, text, whether the comment has lines of its own, whether it ends with its line)."""
    for token in C_TOKEN.finditer(source):
        if token.lastgroup:
            line = source.count("\n", 0, token.start()) + 1
            before = source[source.rfind("\n", 0, token.start()) + 1:token.start()]
            text = re.sub(r"^[ \t]*\*", "", token[token.lastgroup], flags=re.M).strip("*!<")
            yield line, text, not before.strip(), token.lastgroup == "line"


def python_comments(source):
    """Yields the comments of a Python source as c_comments() does."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
                yield token.start[0], token.string.lstrip("#:"), not token.line[:token.start[1]].strip(), True
    except (tokenize.TokenError, SyntaxError):
        return


def python_docstrings(source):
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node) is not None:
            yield node.body[0].lineno, node.body[0].value.value


def paragraphs(comments):
    """Yields (line, text), where line comments that follow each other on lines of their own are one text."""
    first = last = text = None
    for line, more, own, single in comments:
        if text is not None and own and single and line == last + 1:
            text, last = f"{text}\n{more}", line
            continue
        if text is not None:
            yield first, text
        first, text, last = line, more, line if own and single else -1
    if text is not None:
        yield first, text


def comments_of(path, source):
    """Yields (line, text) of each comment and docstring that is prose."""
    if path.suffix in C_SUFFIXES:
        found = list(paragraphs(c_comments(source)))
    elif path.suffix == ".py" or re.match(r"#!.*python", source):
        found = [*paragraphs(python_comments(source)), *python_docstrings(source)]
    else:
        return
    for line, text in found:
        if is_prose(text):
            yield line + len(re.match(r"[\s*=~#-]*", text)[0].split("\n")) - 1, text


# --- the tree ---


def git(root, *arguments):
    """Returns the output of git, or None if it fails or is not installed."""
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, errors="replace", check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def files(root):
    """Returns the names of the files of the tree: those that git knows, or all of them where git does not know the tree."""
    listed = git(root, "ls-files", "-z") if (root / ".git").exists() else None
    names = listed.split("\0") if listed else [str(path.relative_to(root)) for path in root.rglob("*")]
    return sorted(name for name in names if name and not SKIP.match(name))


def offenders(root):
    """Returns {folder: [FILE:LINE: TEXT, ...]} of the comments that lack a subject."""
    found = collections.defaultdict(list)
    for name in files(root):
        path = root / name
        if path.suffix not in {"", ".py", *C_SUFFIXES} or path.is_symlink() or not path.is_file():
            continue
        try:
            source = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for line, text in comments_of(path, source):
            if lacks_subject(text):
                found[str(pathlib.PurePath(name).parent)].append(f"{name}:{line}: {' '.join(text.split())[:110]}")
    return found


# --- the table ---


def read_table(root):
    """Returns {folder: ceiling} and the commit of the row `base`."""
    ceilings, base = {}, None
    for number, line in enumerate((root / TABLE).read_text().split("\n"), 1):
        row = line.partition("#")[0].split()
        if len(row) == 2 and row[0] == "base":
            base = row[1]
        elif len(row) == 2 and row[1].isdecimal() and row[0] not in ceilings:
            ceilings[row[0]] = int(row[1])
        elif row:
            sys.exit(f"{TABLE}:{number}: {line!r} is neither `FOLDER CEILING` nor `base COMMIT`, or repeats a folder")
    return ceilings, base


def table_text(ceilings, base):
    # git merges changes of two rows only if an unchanged line separates the rows.
    rows = [f"{folder} {ceiling}\n" for folder, ceiling in sorted(ceilings.items()) if ceiling]
    return ("# The number of comments without a subject that each folder may have; tests/check-comments.py writes and checks the table.\n"
            "# The subjects of commits after `base` are checked. Empty lines let two branches change two rows.\n\n"
            + "\n".join([f"base {base}\n", *rows]))


def write_table(root, allow_raise):
    ceilings, base = read_table(root)
    counts = {folder: len(found) for folder, found in offenders(root).items()}
    above = [folder for folder in sorted(counts) if counts[folder] > ceilings.get(folder, 0)]
    if above and not allow_raise:
        for folder in above:
            print(f"{folder}: {counts[folder]} comments lack a subject, the ceiling is {ceilings.get(folder, 0)}; "
                  f"reword them, or give --allow-raise")
        return 1
    (root / TABLE).write_text(table_text(counts, base))
    return 0


def wrong_counts(counts, ceilings):
    """Yields a message for each folder whose count is not its ceiling."""
    for folder in sorted({*counts, *ceilings}):
        count, ceiling = counts.get(folder, 0), ceilings.get(folder, 0)
        if count > ceiling:
            yield (f"{folder}: {count} comments open without a subject, {ceiling} may; name the subject in the first sentence of the new "
                   f"ones (check-comments.py --list . {folder})")
        elif count < ceiling:
            yield (f"{folder}: {count} comments open without a subject, fewer than the ceiling {ceiling}; lower the ceiling to {count} in "
                   f"{TABLE} (check-comments.py --write-ceilings)")


# --- commit subjects ---

VERBS = set("""accept account acknowledge acquire adapt add adjust adopt advance align allocate allow announce answer append apply arm ask
assert assign attach avoid back balance batch begin bind block bound break bring build bump bypass cache calculate call cancel cap carry
catch change charge check choose claim clamp clarify clean clear close collect combine compare compile complete compute configure confirm
connect consider consolidate continue convert copy correct count cover create cut deal decide declare decode deduplicate default defer
define delay delete deny deprecate derive describe detach detect determine disable discard disconnect distinguish divide document double
downgrade drain draw drive drop dump duplicate edit emit enable encode end enforce enlarge ensure enter enumerate escape establish
estimate evaluate evict examine exclude exempt exercise exit expand expect explain export expose extend extract fail fall feed fetch fill
filter find finish fit fix flush fold follow forbid force format forward free freeze gather generate get give group grow guard hand handle
have hide hold ignore implement import improve include increase index inform inherit initialize inject inline insert inspect install
interpret introduce invalidate invert isolate join judge keep kill label lay lead learn leave lend lengthen let lift limit link list load
lock log look lower make map mark match measure mention merge migrate modernize monitor move name narrow negotiate normalize note notify
observe offer omit open order package overlap own pack pad parse pass patch pause permit pick pin place plan plant plot point poison poll populate port
postpone prefer prefetch prepare preserve prevent print probe process produce prohibit promote protect prove provide prune publish pull
purge push put query quote raise randomize read rearrange rebuild receive recognize recommend reconnect record recover recycle redo reduce
refer refine refresh refuse regenerate register reject relax release reload rely remember remove rename render reopen reorder repair
repeat replace replay reply report reproduce request require rerun reserve reset resize resolve respect respond restart restore restrict
resume retain retire retry return reuse revert review revise revoke rewind reword rework rewrite rotate round route run sample sanitize
save say scale scan schedule search see seed select send separate serve set settle shard share shift shorten show shrink shuffle shut sign
silence simplify simulate skim skip sleep sort spare specify speed spell split spend spoil spread stabilize start state stay stop store
strengthen strip submit subtract suggest support suppress suspend swap switch sync synchronize tag take teach tell terminate test throttle
tidy tie tighten time tolerate trace track translate treat trigger trim truncate trust try tune turn unify unlink unlock unmap unpin
unregister untangle update upgrade use validate vary verify wait wake walk warm warn watch weaken wipe withdraw wrap write yield zero""".split())
FINITE = set("is are was were has have had may must can cannot does do will would should that which who whose of".split())
WITH_THAT = set("assert check confirm document ensure explain mention note prove require say see show state tell test verify".split())
AREA = re.compile(r"(?:[\w./+*@%{},-]+(?: [\w./+*@-]+){0,3}: )+")
CLAUSE = re.compile(r"\b(what(?!-)|who|whose|whom|whoever|(that|which) (is|are|was|were|has|have|had|may|can|must|does|do))\b", re.I)


def is_imperative(body):
    """Returns whether a text opens with a verb of VERBS, after an adverb or a prefix if it has one."""
    words = [word.lower() for word in re.findall(r"[A-Za-z][A-Za-z'-]*|\d+", body)] + ["", ""]
    first, second = words[:2]
    if first.endswith("ly") and second in VERBS or first in ("also", "never", "always", "do") and second:
        return second in VERBS or second == "not"
    if first.removeprefix("re-").removeprefix("pre-").removeprefix("un-") not in VERBS:
        return False
    return second not in FINITE or (second == "that" and first in WITH_THAT) or (second == "of" and first == "get")


def subject_faults(subject):
    """Returns the rules that a commit subject breaks."""
    if re.match(r'(Revert|Reapply) "|Merge ', subject):
        return []
    area = AREA.match(subject)
    body = subject[area.end():] if area else subject
    clause = CLAUSE.search(body)
    return [fault for fault in (
        not area and "no area: write `area: verb ...`",
        not is_imperative(body) and f"not imperative: if {body.split(' ')[0]!r} is a verb, add it to VERBS",
        clause and f"a clause ({clause[0]!r}): name the thing",
        len(subject) > 72 and f"{len(subject)} characters, 72 are allowed") if fault]


def wrong_subjects(root, base):
    """Yields a message for each commit after the base whose subject breaks a rule. Prints the reason if it cannot check them."""
    if base is None or not (root / ".git").exists() or git(root, "merge-base", "--is-ancestor", base, "HEAD") is None:
        print(f"commit subjects: skipped, the history since {base} is not here")
        return
    for line in (git(root, "log", "--no-merges", "--format=%h %s", f"{base}..HEAD") or "").splitlines():
        for fault in subject_faults(line.partition(" ")[2]):
            yield f"commit {line}: {fault}"


def check(root):
    ceilings, base = read_table(root)
    wrong = [*wrong_counts({folder: len(found) for folder, found in offenders(root).items()}, ceilings), *wrong_subjects(root, base)]
    for message in wrong:
        print(message)
    return 1 if wrong else 0


# --- self-test ---

LACKING = ["They are not, or their device hangs.", "It is there, and is not written.", "Of a load the engine sees", "of the pins",
           "What waits with it is answered", "Those that wait", "The same for a get", "As evict_switch() does", "Both are freed",
           "--- of what an earlier process left ---", "But for the first", "Likewise for the next", "The others wait",
           "One that hangs is left"]
WHOLE = ["Returns the size of the pool", "The same slot is used twice", "These functions run on the loop thread", "it->next is freed",
         "it: the iterator of the list", "As a special case, a key of 32 bytes", "Both sides count", "of(x) is a macro here",
         "Another thread may hold the lock", "One client's pool is full", "The rest of the page is empty", "so.limit is read once"]
GOOD_SUBJECTS = ["store: carry live entries forward before a page is overwritten", "gpu: do not overwrite a list in use", "io: Fix a leak",
                 "tests/spin: count pauses in the histogram", 'Revert "io: poll longer"', "pool index: re-check the tag",
                 "tests: check that a page is read", "loop: never sleep with work in the queue"]
BAD_SUBJECTS = ["gpu: a list in flight is not written again", "README: hits without a message", "tests: fewer seeds", "fix a leak",
                "spin: decide who polls for a client", "loop: pause is not counted", "docs: added a page", "io: " + "fix " * 20]
C_SAMPLE = ('char *s = "/* it is no comment */";\n/* SPDX-License-Identifier: MIT */\n/*\n * It is a\n * comment. */\n'
            "int a; // of the loop thread\n/* | it | is | a | table | */\n/* it = next(it); */\n// The first line\n// of two.\n")
PYTHON_SAMPLE = ('#!/usr/bin/env python3\n"""\nIt opens badly, in line 3."""\nx = "# it is a string"\n# What is counted\n# of each\n'
                 'def f():\n    """Of no use at all."""\n')


def self_test_of_tree():
    """Yields what goes wrong with a tree of one file, its table and its history."""
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        root = pathlib.Path(place)
        (root / "tests").mkdir()
        (root / "a.c").write_text("/* It is one. */\nint a; /* they are two */\n")
        (root / TABLE).write_text(table_text({}, "0" * 40))
        counts = {folder: len(found) for folder, found in offenders(root).items()}
        if counts != {".": 2}:
            yield f"the tree has {counts}, not 2 in ."
        if write_table(root, False) != 1 or read_table(root)[0] != {}:
            yield "--write-ceilings raises a ceiling"
        if write_table(root, True) != 0 or read_table(root) != ({".": 2}, "0" * 40):
            yield "--allow-raise does not raise a ceiling, or loses the base"
        if check(root) != 0:
            yield "objects to a folder at its ceiling, or to a tree without history"
        one = "/* It is one. */\n"
        for text, wanted in ((one + one + "// they are two\n", "3 comments"), (one, "lower the ceiling to 1")):
            (root / "a.c").write_text(text)
            messages = list(wrong_counts({folder: len(found) for folder, found in offenders(root).items()}, {".": 2}))
            if len(messages) != 1 or wanted not in messages[0]:
                yield f"says {messages}, not {wanted!r}"
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        if git(root, "init", "-q") is None:
            return
        for subject in ("the first is not checked", "io: a leak", "io: fix a leak"):
            git(root, *identity, "commit", "-q", "--allow-empty", "-m", subject)
        found = list(wrong_subjects(root, git(root, "rev-parse", "HEAD~2").strip()))
        if len(found) != 1 or "io: a leak" not in found[0]:
            yield f"of three commits finds {found}, not the second alone"


def self_test():
    wrong = [f"finds nothing in {text!r}" for text in LACKING if not lacks_subject(text)]
    wrong += [f"objects to {text!r}" for text in WHOLE if lacks_subject(text)]
    wrong += [f"objects to {subject!r}: {subject_faults(subject)}" for subject in GOOD_SUBJECTS if subject_faults(subject)]
    wrong += [f"finds nothing in {subject!r}" for subject in BAD_SUBJECTS if not subject_faults(subject)]
    samples = (("a.c", C_SAMPLE, [4, 6]), ("a.py", PYTHON_SAMPLE, [3, 5, 8]), ("a", PYTHON_SAMPLE, [3, 5, 8]), ("a.md", C_SAMPLE, []))
    for name, sample, lines in samples:
        found = sorted(line for line, text in comments_of(pathlib.Path(name), sample) if lacks_subject(text))
        wrong += [] if found == lines else [f"{name}: finds lines {found}, not {lines}"]
    wrong += self_test_of_tree()
    for message in wrong:
        print("self-test:", message)
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--write-ceilings", action="store_true")
    parser.add_argument("--allow-raise", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("root", nargs="?", default=".", type=pathlib.Path)
    parser.add_argument("folder", nargs="*")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    if options.write_ceilings:
        return write_table(options.root, options.allow_raise)
    if not options.list:
        return check(options.root)
    for folder, found in sorted(offenders(options.root).items()):
        if not options.folder or any(f"{folder}/".startswith(f"{wanted.rstrip('/')}/") for wanted in options.folder):
            print("\n".join(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
