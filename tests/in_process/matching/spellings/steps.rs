//! Steps of normalization backwards: other spellings of a path.

/// A step of normalization backwards: returns a path that becomes this one by the step. `None` if there is none.
pub(crate) type Backwards = fn(&str, usize, usize) -> Option<String>;

pub(crate) const STEPS: [Backwards; 13] = [
    escape,
    escape_by_code_point,
    change_case,
    add_slash_at_end,
    remove_slash_at_end,
    double_slash,
    add_dot,
    add_dots,
    add_dots_at_root,
    hide_slash,
    add_parameter,
    add_dropped_end,
    add_cut_end,
];

fn escape(path: &str, place: usize, choice: usize) -> Option<String> {
    let at = 1 + place % path.len().saturating_sub(1).max(1);
    let byte = *path.as_bytes().get(at)?;
    let escaped = match choice % 2 {
        0 => format!("%{byte:02x}"),
        _ => format!("%{byte:02X}"),
    };
    Some(path[..at].to_owned() + &escaped + &path[at + 1..])
}

fn escape_by_code_point(path: &str, place: usize, _: usize) -> Option<String> {
    let at = 1 + place % path.len().saturating_sub(1).max(1);
    let byte = *path.as_bytes().get(at)?;
    Some(format!("{}%u{byte:04X}{}", &path[..at], &path[at + 1..]))
}

fn change_case(path: &str, place: usize, _: usize) -> Option<String> {
    let letters = path
        .char_indices()
        .filter(|(_, char)| char.is_ascii_alphabetic());
    // The `u` of an escape is no letter of the path.
    let letters: Vec<_> = letters
        .filter(|(at, _)| !path[..*at].ends_with('%'))
        .collect();
    let (at, letter) = *letters.get(place.checked_rem(letters.len())?)?;
    let other = if letter.is_ascii_uppercase() {
        letter.to_ascii_lowercase()
    } else {
        letter.to_ascii_uppercase()
    };
    Some(format!("{}{other}{}", &path[..at], &path[at + 1..]))
}

fn add_slash_at_end(path: &str, _: usize, _: usize) -> Option<String> {
    Some(path.to_owned() + "/")
}

fn remove_slash_at_end(path: &str, _: usize, _: usize) -> Option<String> {
    let shorter = path.strip_suffix('/')?;
    (!shorter.is_empty()).then(|| shorter.to_owned())
}

fn double_slash(path: &str, place: usize, _: usize) -> Option<String> {
    Some(with(path, slash(path, place)?, "/"))
}

fn add_dot(path: &str, place: usize, _: usize) -> Option<String> {
    Some(with(path, end_of_segment(path, place), "/."))
}

fn add_dots(path: &str, place: usize, choice: usize) -> Option<String> {
    let names = ["/x/..", "/admin/..", "/a.b/..", "//.."];
    Some(with(
        path,
        end_of_segment(path, place),
        names[choice % names.len()],
    ))
}

fn add_dots_at_root(path: &str, _: usize, _: usize) -> Option<String> {
    Some(format!("/..{path}"))
}

/// Writes a slash as something that some servers read as one. The first must be a slash.
fn hide_slash(path: &str, place: usize, choice: usize) -> Option<String> {
    let at = slash(path, place).filter(|at| *at > 0)?;
    let hidden = ["%2F", "%2f", "\\", "%5C", "%255c", "%252F"];
    Some(path[..at].to_owned() + hidden[choice % hidden.len()] + &path[at + 1..])
}

fn add_parameter(path: &str, place: usize, choice: usize) -> Option<String> {
    let parameters = [
        ";", ";x=1", ";a;b", ";..", ";a%2Fb", ";a\\..", ";%3F", ";.", "%00", "%00.png", "%00;x%2F",
    ];
    Some(with(
        path,
        end_of_segment(path, place),
        parameters[choice % parameters.len()],
    ))
}

/// Adds what some servers drop at the end of a name.
fn add_dropped_end(path: &str, place: usize, choice: usize) -> Option<String> {
    let at = end_of_segment(path, place);
    let dropped = [".", "%20", "%0a", "%0D%0A", "...", "%20.", "%09"];
    path[..at]
        .ends_with(|char: char| char.is_ascii_alphanumeric())
        .then(|| with(path, at, dropped[choice % dropped.len()]))
}

fn add_cut_end(path: &str, _: usize, choice: usize) -> Option<String> {
    let ends = [
        "%3F",
        "%3Fx=/y",
        "%23",
        "%23x/../y",
        "%00",
        "%00/x",
        "%253F/./;",
    ];
    Some(path.to_owned() + ends[choice % ends.len()])
}

/// Returns the place of a slash.
fn slash(path: &str, place: usize) -> Option<usize> {
    let slashes: Vec<_> = path.match_indices('/').map(|(at, _)| at).collect();
    slashes.get(place.checked_rem(slashes.len())?).copied()
}

/// Returns the end of a segment: before a slash, or the end of the path.
fn end_of_segment(path: &str, place: usize) -> usize {
    let slashes = path
        .match_indices('/')
        .map(|(at, _)| at)
        .filter(|at| *at > 0);
    let ends: Vec<_> = slashes.chain([path.len()]).collect();
    ends[place % ends.len()]
}

fn with(path: &str, at: usize, added: &str) -> String {
    path[..at].to_owned() + added + &path[at..]
}
