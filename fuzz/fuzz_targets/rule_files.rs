//! Rule files: whatever a file contains, reading it neither panics nor returns rules that cannot be built or read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::{
    RateLimitLayer,
    config::{Format, RuleSet},
};

fuzz_target!(|data: &[u8]| {
    let [choice, rest @ ..] = data else { return };
    let Ok(text) = std::str::from_utf8(rest) else {
        return;
    };
    let format = match choice % 3 {
        0 => Format::Json,
        1 => Format::Toml,
        _ => Format::Yaml,
    };
    match RuleSet::parse(format, text) {
        Ok(set) => {
            let layer = RateLimitLayer::builder().rules(&set).build();
            layer.expect("a file without a fault can be built");
            let again = RuleSet::parse(Format::Json, &set.to_json());
            assert_eq!(Ok(set), again, "a set can be read again");
        }
        Err(error) => {
            // In YAML, a carriage return alone ends a line.
            let lines = text.split(['\n', '\r']).count();
            let faults = error.faults();
            assert!(!faults.is_empty(), "a refused file has a fault");
            for fault in faults {
                assert!((1..=lines).contains(&fault.line()), "{error}");
                assert!(fault.column() > 0, "{error}");
            }
        }
    }
});
