//! Rule files of a mebibyte that were made to take long or much memory.

use std::{env, fmt::Write as _, thread, time::Duration};

use allocation_counter::measure;
use rustix::time::{ClockId, clock_gettime};
use tollgate::config::{Format, RuleSet};

use crate::support::Random;

/// The longest file, in bytes.
const MIB: usize = 1 << 20;
/// The most separators of a text.
const MOST_SEPARATORS: usize = 80_000;
/// The most memory that reading a file takes at once, in bytes.
const MOST_MEMORY: u64 = 64 << 20;
/// The longest text of an error, in bytes.
const MOST_SHOWN: usize = 150_000;
/// The most bytes that reading a file allocates in all: a measure of the work, which is the same on each machine.
const MOST_WORK: u64 = 1 << 30;

/// A rule without its lists.
const RULE: &str = "rules:\n- id: a\n  key: { header: x }\n  limit: 5/min\n";

/// Repeats parts, each with the number of the repetition, up to a mebibyte, or as many as there may be.
fn repeated(start: &str, part: impl Fn(usize) -> String, end: &str) -> String {
    let separators = |text: &str| {
        text.bytes()
            .filter(|byte| b",:=.?[{&*!".contains(byte))
            .count()
    };
    let mut text = start.to_owned();
    let mut left = MOST_SEPARATORS - separators(start) - separators(end);
    for number in 0.. {
        let next = part(number);
        let count = separators(&next);
        if text.len() + next.len() + end.len() > MIB || count > left {
            break;
        }
        left -= count;
        text += &next;
    }
    text + end
}

/// Tiers with names of this length, and as many overrides as fit.
fn tiers(count: usize, length: usize, tier: impl Fn(usize) -> String) -> String {
    let mut start = format!("{RULE}  tiers:\n");
    for number in 0..count {
        let _ = writeln!(start, "    {}{number}: 5/min", "t".repeat(length));
    }
    start += "  overrides:\n";
    repeated(
        &start,
        |number| format!("  - {{key: a, tier: {}}}\n", tier(number)),
        "",
    )
}

type Shape = (&'static str, fn(&mut Random) -> (Format, String));

/// Files that are as long as a file may be.
const SHAPES: &[Shape] = &[
    ("long tiers, empty override", |random| {
        let count = 1 + random.below(800) as usize;
        (Format::Yaml, tiers(count, 1_000, |_| "''".to_owned()))
    }),
    ("many tiers, misspelt overrides", |random| {
        let count = 1 + random.below(20_000) as usize;
        (
            Format::Yaml,
            tiers(count, 12, |number| format!("tttttttxttttt{number}")),
        )
    }),
    // The faults of the overrides come first, so they are the ones that are kept.
    ("misspelt overrides before long tiers", |_| {
        let mut start = format!("{RULE}  overrides:\n");
        for number in 0..100 {
            let tier = "t".repeat(58);
            let _ = writeln!(start, "  - {{key: u{number}, tier: {tier}{number}}}");
        }
        start += "  tiers:\n";
        let tier = |number| format!("    {}{number}: 5/min\n", "t".repeat(1_000));
        (Format::Yaml, repeated(&start, tier, ""))
    }),
    ("many policies, many patterns", |random| {
        let patterns = 1 + random.below(300);
        let patterns: Vec<_> = (0..patterns).map(|number| format!("/a{number}")).collect();
        let patterns = patterns.join(", ");
        let rule = |number| {
            format!("- {{ id: r{number}, key: global, limit: 5/min, path: [{patterns}, bad] }}\n")
        };
        (Format::Yaml, repeated("rules:\n", rule, ""))
    }),
    ("many unknown fields", |_| {
        (
            Format::Yaml,
            repeated(RULE, |number| format!("  limti{number}: 1\n"), ""),
        )
    }),
    ("many unknown fields on top", |_| {
        (
            Format::Yaml,
            repeated("", |number| format!("f{number}: 1\n"), ""),
        )
    }),
    ("one field twice and twice", |_| {
        (Format::Yaml, repeated(RULE, |_| "  limit: 1\n".into(), ""))
    }),
    ("many rules of one id", |_| {
        (
            Format::Yaml,
            repeated("rules:\n", |_| "- {id: a, key: x}\n".into(), ""),
        )
    }),
    ("many empty rules", |_| {
        (Format::Yaml, repeated("rules: [", |_| "{},".into(), "{}]"))
    }),
    ("many candidates", |_| {
        let rule = |number| format!("- {{id: r{number}, key: global, limit: x, candidate: y}}\n");
        (Format::Yaml, repeated("rules:\n", rule, ""))
    }),
    ("flow list of short texts", |_| {
        (Format::Yaml, repeated("rules: [", |_| "a,".into(), "a]"))
    }),
    ("flow list of pairs", |_| {
        (Format::Yaml, repeated("rules: [", |_| "a: b,".into(), "a]"))
    }),
    ("flow list of pairs without end", |_| {
        (Format::Yaml, repeated("rules: [", |_| "a: b,".into(), ""))
    }),
    ("flow mapping", |_| {
        (Format::Yaml, repeated("{", |_| "a: {},".into(), "}"))
    }),
    ("quoted texts side by side", |_| {
        (Format::Yaml, repeated("rules: [", |_| "''".into(), "]"))
    }),
    ("question marks", |_| {
        (Format::Yaml, repeated("[", |_| "? ".into(), "]"))
    }),
    ("anchors", |random| {
        let sign = ["&a ", "*a ", "!a "][random.below(3) as usize];
        (Format::Yaml, repeated("[", |_| sign.into(), "]"))
    }),
    ("aliases that grow", |_| {
        let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for number in 1..20 {
            let last = format!("*a{},", number - 1);
            let _ = writeln!(text, "a{number}: &a{number} [{}]", last.repeat(9));
        }
        (Format::Yaml, text)
    }),
    ("merge keys", |_| {
        (
            Format::Yaml,
            repeated("a: &a { b: 1 }\nrules:\n", |_| "- { <<: *a }\n".into(), ""),
        )
    }),
    ("deep lists", |random| {
        let format = [Format::Yaml, Format::Json, Format::Toml][random.below(3) as usize];
        let start = if format == Format::Toml { "a = " } else { "" };
        (format, repeated(start, |_| "[".into(), ""))
    }),
    ("deep mappings", |random| {
        let format = [Format::Yaml, Format::Json, Format::Toml][random.below(3) as usize];
        let (start, part) = match format {
            Format::Toml => ("a = ", "{a="),
            Format::Json => ("", "{\"a\":"),
            _ => ("", "{a: "),
        };
        (format, repeated(start, |_| part.into(), ""))
    }),
    ("deep blocks", |_| {
        (
            Format::Yaml,
            repeated("", |number| format!("{}a:\n", " ".repeat(number)), ""),
        )
    }),
    ("dashes", |_| {
        (Format::Yaml, repeated("", |_| "- ".into(), ""))
    }),
    ("long lines of dashes", |_| {
        (Format::Yaml, repeated("rules:\n", |_| "- -\n".into(), ""))
    }),
    ("one long name", |random| match random.below(3) {
        0 => (Format::Yaml, repeated("? ", |_| "a".into(), "\n: 1")),
        1 => (Format::Json, repeated("{\"", |_| "a".into(), "\": 1}")),
        _ => (Format::Toml, repeated("", |_| "a".into(), " = 1")),
    }),
    ("one long value in every field", |random| {
        const FIELDS: [&str; 12] = [
            "id",
            "key",
            "limit",
            "path",
            "method",
            "host",
            "window",
            "algorithm",
            "unit",
            "outage",
            "mode",
            "tier_from",
        ];
        let field = FIELDS[random.below(12) as usize];
        (
            Format::Yaml,
            repeated(
                &format!("{RULE}- {field}: \""),
                |_| "behind(".into(),
                "\"\n",
            ),
        )
    }),
    ("one path of many segments", |_| {
        (
            Format::Yaml,
            repeated(&format!("{RULE}  path: \""), |_| "/a".into(), "\"\n"),
        )
    }),
    ("many paths without a fault", |_| {
        (
            Format::Yaml,
            repeated(&format!("{RULE}  path:\n"), |_| "  - /a/b\n".into(), ""),
        )
    }),
    ("one text of quotes and escapes", |_| {
        (
            Format::Yaml,
            repeated(
                &format!("{RULE}  path: \""),
                |_| "\\e\\\"burst(x)".into(),
                "\"\n",
            ),
        )
    }),
    ("a long number", |_| {
        (
            Format::Yaml,
            repeated(&format!("{RULE}  cost: "), |_| "9".into(), ""),
        )
    }),
    ("a long duration", |_| {
        (
            Format::Yaml,
            repeated(&format!("{RULE}  max_wait: "), |_| "1s".into(), ""),
        )
    }),
    ("many costs", |_| {
        let start = format!("{RULE}  costs:\n");
        let cost = |number| format!("  - {{when: {{path: /a{number}}}, units: 99}}\n");
        (Format::Yaml, repeated(&start, cost, ""))
    }),
    ("many networks", |_| {
        let start = "rules: []\nforbid:\n- peer:\n";
        let network = |number| format!("  - 10.{}.{}.0/33\n", number / 256 % 256, number % 256);
        (Format::Yaml, repeated(start, network, ""))
    }),
    ("many networks without a fault", |_| {
        let start = format!("{RULE}forbid:\n- peer:\n");
        let network = |number| format!("  - 10.{}.{}.0/24\n", number / 256 % 256, number % 256);
        (Format::Yaml, repeated(&start, network, ""))
    }),
    ("many methods", |_| {
        (
            Format::Yaml,
            repeated(&format!("{RULE}  method: ["), |_| "get,".into(), "x]\n"),
        )
    }),
    ("many hosts", |_| {
        (
            Format::Yaml,
            repeated(&format!("{RULE}  host:\n"), |_| "  - a/b\n".into(), ""),
        )
    }),
    ("many joined keys", |_| {
        (
            Format::Yaml,
            repeated(
                "rules:\n- id: a\n  key:\n    and:\n",
                |_| "    - hots\n".into(),
                "",
            ),
        )
    }),
    ("many overrides without a fault", |_| {
        let start = format!("{RULE}  overrides:\n");
        let each = |number| format!("  - key: user{number}\n    tier: forbidden\n");
        (Format::Yaml, repeated(&start, each, ""))
    }),
    ("many overrides with a quota", |_| {
        let start = format!("{RULE}  overrides:\n");
        let each = |number| format!("  - {{key: u{number}, tier: 1/s}}\n");
        (Format::Yaml, repeated(&start, each, ""))
    }),
    ("many tiers without a fault", |_| {
        let start = format!("{RULE}  tier_from: {{ header: x-plan }}\n  tiers:\n");
        let each = |number| format!("    t{number}: 1/s\n");
        (Format::Yaml, repeated(&start, each, ""))
    }),
    ("many headers", |_| {
        (
            Format::Yaml,
            repeated("headers: [", |_| "legacy,".into(), "none]"),
        )
    }),
    ("many documents", |_| {
        (Format::Yaml, repeated(RULE, |_| "---\n".into(), ""))
    }),
    ("comments and empty lines", |_| {
        (Format::Yaml, repeated("rules: []", |_| "\n#".into(), ""))
    }),
    ("carriage returns", |_| {
        (Format::Yaml, repeated("rules: []", |_| "\r".into(), ""))
    }),
    ("block text", |_| {
        (Format::Yaml, repeated("rules: |\n", |_| "  a\n".into(), ""))
    }),
    ("signs at random", |random| {
        const SIGNS: &[u8] = b"[]{},:?&*!'\"|>-#%@ab \n\t";
        let length = 1 + random.below(100_000) as usize;
        let signs = (0..length).map(|_| {
            let sign = SIGNS[random.below(SIGNS.len() as u64) as usize];
            char::from(sign)
        });
        (Format::Yaml, signs.collect())
    }),
    ("more separators than may be", |random| {
        let (format, sign) = [
            (Format::Yaml, "a: b,"),
            (Format::Yaml, "? "),
            (Format::Yaml, "*a "),
            (Format::Toml, "[],"),
            (Format::Toml, "a.a.a=0\n"),
        ][random.below(5) as usize];
        (format, sign.repeat(MIB / sign.len()))
    }),
    ("json, short values", |_| {
        (
            Format::Json,
            repeated("{\"rules\": [", |_| "0,".into(), "0]}"),
        )
    }),
    ("json, more values than may be", |_| {
        let values = "0,".repeat(MIB / 2 - 20);
        (Format::Json, format!("{{\"rules\": [{values}0]}}"))
    }),
    ("json, empty lists", |_| {
        (
            Format::Json,
            repeated("{\"rules\": [", |_| "[],".into(), "0]}"),
        )
    }),
    ("json, fields", |_| {
        (
            Format::Json,
            repeated("{\"rules\": {", |_| "\"\":0,".into(), "\"\":0}}"),
        )
    }),
    ("json, unknown fields with escapes", |_| {
        (
            Format::Json,
            repeated("{", |_| "\"\\u001b[2J\\n\":0,".into(), "\"\":0}"),
        )
    }),
    ("json, nested and then long", |_| {
        let (open, close) = ("[".repeat(28), "]".repeat(28));
        (
            Format::Json,
            repeated(
                &format!("{{\"rules\": {open}"),
                |_| "\"a\",".into(),
                &format!("0{close}}}"),
            ),
        )
    }),
    ("json, one unknown field in each of many rules", |_| {
        (
            Format::Json,
            repeated("{\"rules\": [", |_| "{\"idd\":1},".into(), "{}]}"),
        )
    }),
    ("toml, short values", |_| {
        (Format::Toml, repeated("a = [", |_| "0,".into(), "0]"))
    }),
    ("toml, empty lists", |_| {
        (Format::Toml, repeated("a = [", |_| "[],".into(), "0]"))
    }),
    ("toml, empty tables", |_| {
        (Format::Toml, repeated("a = [", |_| "{},".into(), "0]"))
    }),
    ("toml, dots", |_| {
        (Format::Toml, repeated("a", |_| ".a".into(), " = 1"))
    }),
    ("toml, fields", |_| {
        (
            Format::Toml,
            repeated("", |number| format!("a{number}=0\n"), ""),
        )
    }),
    ("toml, dotted fields", |_| {
        (
            Format::Toml,
            repeated("", |number| format!("a.b{number}.c=0\n"), ""),
        )
    }),
    ("toml, faults of the syntax", |random| {
        let part = ["=\n", "a\n", "]\n", "[\n", "a a ", "= = ", "\"\n"][random.below(7) as usize];
        (Format::Toml, repeated("", |_| part.into(), ""))
    }),
    ("toml, tables", |_| {
        (Format::Toml, repeated("", |_| "[[rules]]\n".into(), ""))
    }),
    ("toml, nested tables", |_| {
        (
            Format::Toml,
            repeated("", |_| "[[a.b.c.d.e.f.g.h]]\n".into(), ""),
        )
    }),
    ("toml, spaces", |_| {
        (Format::Toml, repeated("a = 0 #", |_| "\n ".into(), ""))
    }),
    ("toml, unknown fields", |_| {
        let start = "[[rules]]\nid = \"a\"\n";
        (
            Format::Toml,
            repeated(start, |number| format!("limti{number} = 1\n"), ""),
        )
    }),
];

/// Returns the time for which this thread has run.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Fills a text up to a mebibyte, with what no parser keeps.
fn padded(format: Format, mut text: String) -> String {
    if format == Format::Json {
        text += &" ".repeat(MIB - text.len());
    } else if text.len() + 2 < MIB {
        text += "\n#";
        text += &"#".repeat(MIB - text.len());
    }
    text
}

// Regression: 944 KiB took 19 GB, and 514 KiB were refused after a minute.
#[test]
fn hostile_files_of_a_mebibyte_take_little_memory_and_work() {
    // One of each shape; more by the variable, such as 200 in a release build.
    let count = env::var("TOLLGATE_RULE_FILES");
    let count = count.map_or(SHAPES.len(), |count| count.parse().expect("a number"));
    let files: Vec<_> = (0..count).collect();
    let read: Vec<Read> = thread::scope(|scope| {
        let parts = files.chunks(files.len().div_ceil(4));
        let threads: Vec<_> = parts
            .map(|part| scope.spawn(|| part.iter().map(|number| read(*number)).collect::<Vec<_>>()))
            .collect();
        let ended = threads.into_iter().map(thread::ScopedJoinHandle::join);
        ended.flat_map(|read| read.expect("no panic")).collect()
    });
    let most = |of: fn(&Read) -> u64| read.iter().map(of).max().expect("files");
    println!(
        "at most {} MB at once, {} MB in all, {:?} for a file, {:?} for all of {}",
        most(|read| read.memory) >> 20,
        most(|read| read.work) >> 20,
        read.iter().map(|read| (read.took, read.name)).max(),
        read.iter().map(|read| read.took).sum::<Duration>(),
        read.len()
    );
    let over = read.iter().filter(|read| {
        read.memory > MOST_MEMORY || read.work > MOST_WORK || read.shown > MOST_SHOWN
    });
    let over: Vec<_> = over.collect();
    assert!(over.is_empty(), "{over:#?}");
}

/// What reading a file cost.
#[derive(Debug)]
struct Read {
    name: &'static str,
    /// The most bytes at once.
    memory: u64,
    /// The bytes in all.
    work: u64,
    shown: usize,
    took: Duration,
}

/// Makes and reads a file of this number.
fn read(number: usize) -> Read {
    let (name, make) = SHAPES[number % SHAPES.len()];
    let (format, text) = make(&mut Random(number as u64));
    let text = padded(format, text);
    assert!(text.len() <= MIB, "{name}");
    let started = cpu_time();
    let mut shown = 0;
    let info = measure(|| {
        if let Err(error) = RuleSet::parse(format, &text) {
            shown = error.to_string().len();
        }
    });
    Read {
        name,
        memory: info.bytes_max,
        work: info.bytes_total,
        shown,
        took: cpu_time() - started,
    }
}

// Regression: each misspelt name was compared with each known one.
#[test]
fn names_of_many_tiers_are_compared_with_few_misspelt_ones() {
    let mut text = format!("{RULE}  tiers:\n");
    for number in 0..6_000 {
        let _ = writeln!(text, "    tier-with-a-name-{number}: 5/min");
    }
    text += "  overrides:\n";
    for number in 0..6_000 {
        let _ = writeln!(
            text,
            "  - {{ key: k{number}, tier: teir-with-a-name-{number} }}"
        );
    }
    let info = measure(|| {
        let error = RuleSet::parse(Format::Yaml, &text).expect_err("misspelt");
        assert_eq!(
            error.faults()[0].remedy(),
            "write `tier-with-a-name-0`, or a rate"
        );
        assert!(error.to_string().ends_with("and 5900 more"), "{error}");
        assert!(error.to_string().len() < MOST_SHOWN, "{error}");
    });
    assert!(info.count_total < 500_000, "{info:?}");
    assert!(info.bytes_max < MOST_MEMORY, "{info:?}");
}

#[test]
fn few_names_of_many_are_listed() {
    let names: String = (0..500)
        .map(|number| format!("    tier-{number}: 5/min\n"))
        .collect();
    let text = format!("{RULE}  tiers:\n{names}  overrides: [{{ key: a, tier: other }}]\n");
    let error = RuleSet::parse(Format::Yaml, &text).expect_err("an unknown tier");
    let remedy = error.faults()[0].remedy();
    assert!(
        remedy.starts_with("write one of `tier-0`, `tier-1`, `tier-2`, "),
        "{remedy}"
    );
    assert!(remedy.ends_with("`, .., or a rate"), "{remedy}");
}

#[test]
fn more_values_separators_and_quotas_than_a_file_may_have_are_refused() {
    let many = |part: &str, count: usize| format!("rules:\n{}", part.repeat(count));
    let json = format!("{{\"rules\": [{}0]}}", "0,".repeat(150_000));
    for (format, text, reason) in [
        (
            Format::Yaml,
            many("- -\n", 100_000),
            "more than 150000 values",
        ),
        (Format::Json, json, "more than 150000 values"),
        (
            Format::Yaml,
            many("- {a: 1}\n", 50_000),
            "more than 80,000 separators (,:?[{&*!)",
        ),
        (
            Format::Yaml,
            repeated(
                &format!("{RULE}  tier_from: {{ header: x-plan }}\n  tiers:\n"),
                |number| format!("    t{number}: 1/s\n"),
                "",
            ),
            "more than 10,000 quotas of tiers and overrides",
        ),
    ] {
        let error = RuleSet::parse(format, &text).expect_err("too many");
        assert_eq!(error.faults()[0].reason(), reason);
        assert_eq!(error.faults().len(), 1, "{error}");
    }
}
