//! The Lua files: tools accept them, their names match those in Rust, and the examples in their headers are true.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Command,
};

use redis::Value;
use tollgate::remote::Script;

use crate::support::{Server, unpack};

/// Returns the text of the files in `lua/`, by name.
fn files() -> BTreeMap<String, String> {
    let entries = fs::read_dir(root().join("lua")).expect("the folder of the scripts");
    entries
        .map(|entry| {
            let path = entry.expect("a file").path();
            let name = path.file_name().expect("a name").to_string_lossy();
            (
                name.into_owned(),
                fs::read_to_string(&path).expect("readable text"),
            )
        })
        .collect()
}

/// Returns the files of the algorithms.
fn algorithms() -> BTreeMap<String, String> {
    let mut files = files();
    // What a penalty adds to a charge is in `tests/policy/penalties.rs`.
    for other in [
        ADAPT,
        BLOCKS,
        DECIDE,
        DENIAL,
        ENDED_LEASES,
        FAILURE,
        LATTICE,
        LEASE,
        LEASE_REPORT,
        LINE_CHARGE,
        LINE_CHECK,
        LINE_CLOSE,
        LINE_NEXT,
        LINE_OPEN,
        RELEASE_CLOSE,
        RELEASE_OPEN,
        MEMBERS,
        PAUSE,
        PENALTY,
        RULES,
        TOP_KEYS,
        WINDOW_LEASES,
    ] {
        files.remove(other).expect("a file of another kind");
    }
    files
}

fn source_of(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect("readable text")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

const ADAPT: &str = "adapt.lua";
const BLOCKS: &str = "blocks.lua";
const DECIDE: &str = "decide.lua";
const DENIAL: &str = "denial.lua";
const ENDED_LEASES: &str = "ended_leases.lua";
const FAILURE: &str = "failure.lua";
const LATTICE: &str = "lattice.lua";
const LEASE: &str = "lease.lua";
const LEASE_REPORT: &str = "lease_report.lua";
const LINE_CHARGE: &str = "line_charge.lua";
const LINE_CHECK: &str = "line_check.lua";
const LINE_CLOSE: &str = "line_close.lua";
const LINE_NEXT: &str = "line_next.lua";
const LINE_OPEN: &str = "line_open.lua";
const MEMBERS: &str = "members.lua";
const PAUSE: &str = "pause.lua";
const PENALTY: &str = "penalty.lua";
const RELEASE_CLOSE: &str = "release_close.lua";
const RELEASE_OPEN: &str = "release_open.lua";
const RULES: &str = "rules.lua";
const TOP_KEYS: &str = "top_keys.lua";
const WINDOW_LEASES: &str = "window_leases.lua";

// === Tools ===

/// Runs the first of these programs that is installed, from the project's root, and returns whether it succeeded and
/// its output.
fn run(programs: &[&str], arguments: &[&str]) -> (bool, String) {
    for program in programs {
        let output = Command::new(program)
            .args(arguments)
            .current_dir(root())
            .output();
        match output {
            Ok(output) => {
                let text = [output.stdout, output.stderr].concat();
                return (
                    output.status.success(),
                    String::from_utf8_lossy(&text).into_owned(),
                );
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => panic!("{program}: {error}"),
        }
    }
    panic!(
        "{} is missing: run `bash tests/run.sh`, which installs it, or `apt-get install lua5.1 lua-check`",
        programs[0]
    );
}

/// Writes the composed scripts as they are sent to servers to files, and returns the paths.
fn composed() -> [PathBuf; 3] {
    [
        (DECIDE, Script::DECIDE),
        ("acquire.lua", Script::ACQUIRE),
        ("release.lua", Script::RELEASE),
    ]
    .map(|(name, script)| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&path, script.source()).expect("a writable folder");
        path
    })
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[test]
fn every_lua_file_and_the_composed_script_compile() {
    let mut paths: Vec<PathBuf> = files()
        .keys()
        .map(|name| root().join("lua").join(name))
        .collect();
    paths.extend(composed());
    for path in paths {
        let (is_accepted, report) = run(&["luac5.1", "luac"], &["-p", utf8(&path)]);
        assert!(is_accepted, "{report}");
    }
}

/// Shared names are globals to the files of the algorithms, so only the composed script shows unused and shadowed ones.
#[test]
fn luacheck_reports_nothing_about_any_file_or_the_composed_script() {
    let composed = composed();
    for path in [Path::new("lua")]
        .into_iter()
        .chain(composed.iter().map(PathBuf::as_path))
    {
        let path = utf8(path);
        let arguments = ["--no-color", "--no-cache", "--config", ".luacheckrc", path];
        let (is_accepted, report) = run(&["luacheck"], &arguments);
        assert!(is_accepted, "{report}");
    }
}

#[test]
fn luacheck_reports_names_that_are_unused_shadowed_or_unknown() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("careless.lua");
    for (line, reported) in [
        ("local UNUSED_TAG = 'z'", "unused variable"),
        (
            "for _, now in ipairs(KEYS) do redis.call('GET', now) end",
            "shadowing",
        ),
        (
            "redis.call('GET', is_unknown)",
            "accessing undefined variable",
        ),
        ("is_unknown = true", "setting non-standard global"),
    ] {
        let careless = Script::DECIDE
            .source()
            .replace("local now_millis", &format!("{line}\nlocal now_millis"));
        fs::write(&path, careless).expect("a writable folder");
        let arguments = [
            "--no-color",
            "--no-cache",
            "--config",
            ".luacheckrc",
            utf8(&path),
        ];
        let (is_accepted, report) = run(&["luacheck"], &arguments);
        assert!(
            !is_accepted && report.contains(reported),
            "{line}: {report}"
        );
    }
}

// === Composition ===

#[test]
fn every_algorithm_file_is_a_branch_of_the_script() {
    let (decide, composed) = (source_of("lua/decide.lua"), Script::DECIDE.source());
    for (name, source) in algorithms() {
        let include = format!("include('{name}')");
        assert_eq!(decide.matches(&include).count(), 1, "{include}");
        let code = code(&source);
        let lines = code.lines().map(str::trim);
        for line in lines.filter(|line| !line.starts_with("include(")) {
            assert!(composed.lines().any(|sent| sent == line), "{name}: {line}");
        }
    }
    assert!(!composed.contains("include("));
    assert!(!composed.contains("line_"), "lines are left out");
    assert!(!Script::ACQUIRE.source().contains("include("));
}

#[test]
fn script_is_sent_without_comments_and_without_a_shebang() {
    let source = Script::DECIDE.source();
    assert!(!source.contains("--"), "a comment is sent with the text");
    assert!(
        !source.starts_with("#!"),
        "a shebang does not run on Redis 6.2"
    );
}

/// Returns the lines of a Lua file that are not comments.
fn code(source: &str) -> String {
    let lines = source.lines();
    let code = lines.filter(|line| !line.trim_start().starts_with("--") && !line.trim().is_empty());
    code.collect::<Vec<_>>().join("\n")
}

// === Names shared with Rust ===

/// Returns the tags in `lua/decide.lua`: the name of each constant of one byte, and that byte.
pub(crate) fn tags() -> BTreeMap<String, char> {
    constants(&source_of("lua/decide.lua"), "local ", '\'')
}

/// Returns constants whose value is one character between `quote`s, in lines that begin with `start`.
fn constants(source: &str, start: &str, quote: char) -> BTreeMap<String, char> {
    let lines = source
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix(start));
    lines
        .filter_map(|line| {
            let (name, value) = line.split_once(" = ")?;
            let mut value = value.trim_start_matches('b').chars();
            let is_tag = value.next() == Some(quote);
            let byte = value.next()?;
            (is_tag && value.next() == Some(quote)).then(|| (screaming(name), byte))
        })
        .collect()
}

/// Returns `CLOCK_WINDOW` for `ClockWindow`. Names in capitals stay as they are.
fn screaming(name: &str) -> String {
    if !name.contains(|character: char| character.is_ascii_lowercase()) {
        return name.to_owned();
    }
    let mut screaming = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() && !screaming.is_empty() {
            screaming.push('_');
        }
        screaming.push(character.to_ascii_uppercase());
    }
    screaming
}

#[test]
fn tags_in_lua_are_the_variants_of_the_rust_enum() {
    let arguments = source_of("src/remote/protocol/arguments.rs");
    let (_, variants) = arguments
        .split_once("enum Tag {")
        .expect("the enum of tags");
    let (variants, _) = variants.split_once('}').expect("its end");
    let variants = constants(variants, "", '\'');
    assert!(variants.len() > 10, "{variants:?}");
    assert_eq!(tags(), variants);
    let bytes: BTreeSet<char> = variants.values().copied().collect();
    assert_eq!(bytes.len(), variants.len(), "each tag has another byte");
}

#[test]
fn outcomes_in_lua_are_the_constants_of_the_rust_side() {
    let decide = source_of("lua/decide.lua");
    let reply = source_of("src/remote/protocol/reply.rs");
    let outcomes = ["DENIED", "ADMITTED", "FOREIGN", "FAILED"];
    assert!(decide.contains(&format!("local {} = 0, 1, 2, 3\n", outcomes.join(", "))));
    for (number, outcome) in outcomes.iter().enumerate() {
        assert!(
            reply.contains(&format!("const {outcome}: u64 = {number};")),
            "{outcome}"
        );
    }
}

// === Numbers ===

/// Returns whether the code ends in an expression of bytes: a literal, a name in [`BYTES`], or a call of [`MAKERS`].
fn ends_in_bytes(code: &str) -> bool {
    if code.ends_with('\'') || BYTES.iter().any(|name| code.ends_with(name)) {
        return true;
    }
    let mut open = 0;
    let call = code.rfind(|character| {
        open += match character {
            ')' => 1,
            '(' => -1,
            _ => 0,
        };
        open == 0
    });
    code.ends_with(')')
        && call.is_some_and(|call| {
            MAKERS
                .iter()
                .any(|name| code[..call].ends_with(&format!(" {name}")))
        })
}

fn begins_with_bytes(code: &str) -> bool {
    let starts_with = |name: &&str| code.starts_with(*name);
    BYTES.iter().any(starts_with) || MAKERS.iter().any(starts_with)
}

/// Names of byte strings in the script, and functions that return them.
const BYTES: [&str; 18] = [
    "NO_SLOTS",
    "appended",
    "earlier",
    "free_turns",
    "head",
    "later",
    "leases",
    "line_entry",
    "packed",
    "rescaled",
    "rest",
    "rows",
    "state",
    "ticket",
    "total",
    "value",
    "wrapped_rows",
    "'>'",
];
const MAKERS: [&str; 4] = ["pack_bytes", "string.rep", "sub", "table.concat"];

#[test]
fn no_number_is_joined_to_text() {
    let code = Script::ACQUIRE.source().replace('\n', " ");
    assert!(!code.contains("tostring"), "it would write 1.7e+15");
    for (at, _) in code.match_indices("..") {
        let (before, after) = (code[..at].trim_end(), code[at + 2..].trim_start());
        assert!(
            ends_in_bytes(before) && begins_with_bytes(after),
            "a number joined to text would be written as 1.7e+15: {} .. {}",
            &before[before.len().saturating_sub(40)..],
            &after[..after.len().min(40)]
        );
    }
    assert!(ends_in_bytes("a = pack_bytes('>I4', f(x) + (y))"));
    for number in ["a = x", "a = unpack_bytes('>I4', x)", "a = (x)", "a = x)"] {
        assert!(!ends_in_bytes(number), "{number}");
    }
}

// === Headers and worked examples ===

/// Returns the comment at the head of a file.
fn header(source: &str) -> String {
    let lines = source.lines().take_while(|line| line.starts_with("--"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_lua_file_documents_its_keys_arguments_reply_and_an_example() {
    for (name, source) in files() {
        let header = header(&source);
        for part in ["\n-- KEYS ", "\n-- ARGV ", "\n-- Reply ", "\n-- Example: "] {
            assert!(header.contains(part), "{name}:{part}");
        }
        assert!(name == DECIDE || header.contains("\n-- State "), "{name}");
    }
}

/// The time to which the times in the algorithms' examples are relative.
const EPOCH: i64 = 1_700_000_000_000_000;

/// One line of an algorithm's example, such as `at +0 'fAA' 6 10 60000 -> fits, ends +40000000, 6 used: a new window`.
#[derive(Debug)]
struct Step {
    arguments: Vec<Vec<u8>>,
    has_room: bool,
    numbers: Vec<i64>,
}

impl Step {
    fn of(line: &str) -> Option<Self> {
        let line = line.strip_prefix("--   at ")?;
        let (given, expected) = line.split_once(" -> ").expect("what is expected");
        let (time, given) = given.split_once(' ').expect("a time and arguments");
        let mut arguments = vec![b"@".to_vec(), number(time).to_string().into_bytes()];
        arguments.extend(given.split_whitespace().map(argument));
        let expected = expected
            .split(": ")
            .next()
            .expect("a part before the reason");
        let (outcome, state) = expected.split_once(", ").expect("an outcome and a state");
        let words = state.split([' ', ',']);
        let numbers =
            words.filter(|word| word.starts_with(|first: char| first == '+' || first.is_numeric()));
        Some(Self {
            arguments,
            has_room: outcome != "denied",
            numbers: numbers.map(number).collect(),
        })
    }
}

/// Parses a number, or a time relative to [`EPOCH`].
fn number(word: &str) -> i64 {
    match word.strip_prefix('+') {
        Some(micros) => EPOCH + micros.parse::<i64>().expect("microseconds"),
        None => word.parse().expect("a number"),
    }
}

/// Returns the bytes of an argument in a header: a quoted text, with `\0` to `\9` for these bytes, or a number.
fn argument(word: &str) -> Vec<u8> {
    let Some(quoted) = word
        .strip_prefix('\'')
        .and_then(|word| word.strip_suffix('\''))
    else {
        return number(word).to_string().into_bytes();
    };
    let mut bytes = Vec::new();
    let mut characters = quoted.bytes();
    while let Some(byte) = characters.next() {
        bytes.push(match byte {
            b'\\' => characters.next().expect("a digit") - b'0',
            byte => byte,
        });
    }
    bytes
}

fn decide(server: &Server, keys: &[&str], arguments: &[Vec<u8>]) -> Vec<i64> {
    let mut command = redis::cmd("EVAL");
    command
        .arg(Script::DECIDE.source())
        .arg(keys.len())
        .arg(keys);
    let command = arguments
        .iter()
        .fold(&mut command, |command, argument| command.arg(argument));
    let reply: Value = command.query(&mut server.connection()).expect("a reply");
    unpack(&reply)
}

#[test]
fn worked_examples_of_every_algorithm_are_true() {
    let server = Server::start();
    for (name, source) in algorithms() {
        let steps: Vec<Step> = header(&source).lines().filter_map(Step::of).collect();
        assert!(steps.len() >= 3, "{name}: {steps:?}");
        assert!(steps.iter().any(|step| !step.has_room), "{name}");
        for (place, step) in steps.iter().enumerate() {
            let reply = decide(&server, &[&name], &step.arguments);
            let room = i64::from(step.has_room);
            assert_eq!(reply[1], room, "{name}, step {place}: {step:?}");
            assert_eq!(reply[2] % 2, room, "{name}, step {place}: {step:?}");
            assert_eq!(reply[3..], step.numbers, "{name}, step {place}: {step:?}");
        }
    }
}

#[test]
fn worked_example_of_a_lease_is_true() {
    let server = Server::start();
    let header = header(&source_of("lua/lease.lua"));
    let lines: Vec<&str> = header.lines().collect();
    let steps = lines.windows(2).filter_map(|lines| {
        let given = lines[0].strip_prefix("--   at ")?;
        let expected = lines[1].strip_prefix("--     -> ").expect("a reply");
        Some((given, expected))
    });
    let steps: Vec<_> = steps.collect();
    assert_eq!(steps.len(), 11);
    for (given, expected) in steps {
        let words: Vec<&str> = given.split_whitespace().collect();
        let [time, mark, report, charge @ ..] = words.as_slice() else {
            panic!("no report: {given}");
        };
        let mut arguments = vec![b"@".to_vec(), number(time).to_string().into_bytes()];
        arguments.push(argument(mark));
        let numbers = report
            .split(',')
            .map(|word| word.parse().expect("a number"));
        let lengths = [4, 4, 4, 4, 4, 4, 2, 4, 1, 2, 4];
        let packed = numbers
            .zip(lengths)
            .flat_map(|(number, length): (u64, usize)| {
                let bytes = number.to_be_bytes();
                bytes[8 - length..].to_vec()
            });
        arguments.push(packed.collect());
        arguments.extend(charge.iter().copied().map(argument));
        // A key for each algorithm.
        let reply = decide(&server, &[charge[0]], &arguments);
        let expected: Vec<i64> = expected.split(' ').map(number).collect();
        assert_eq!(reply[1..3], [1, 1], "{given}");
        assert_eq!(reply[3..], expected, "{given}");
    }
}

#[test]
fn worked_example_of_the_whole_script_is_true() {
    let server = Server::start();
    let header = header(&source_of("lua/decide.lua"));
    let part = |start: &str| {
        let line = header.lines().find_map(|line| line.strip_prefix(start));
        line.unwrap_or_else(|| panic!("the example has a line {start:?}"))
    };
    let keys: Vec<&str> = part("--   KEYS ")
        .split_whitespace()
        .map(|key| key.trim_matches('\''))
        .collect();
    let arguments: Vec<Vec<u8>> = part("--   ARGV ")
        .split_whitespace()
        .map(argument)
        .collect();
    let reply: Vec<i64> = part("--   reply ").split(", ").map(number).collect();
    assert_eq!(decide(&server, &keys, &arguments), reply);
    assert_eq!(server.keys().len(), keys.len());
}
