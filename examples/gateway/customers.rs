//! Which customer an API key belongs to, and what plan that customer has. In place of a database.

use std::collections::HashMap;

use tollgate::RequestHead;
use tollgate::{
    Key,
    config::RuleSetReader,
    extract::{ApiKey, KeyExtractor},
};

/// API key, name and plan of each customer.
pub(crate) const CUSTOMERS: [(&str, &str, &str); 5] = [
    ("demo-free-ada", "ada", "free"),
    ("demo-free-bob", "bob", "free"),
    ("demo-pro-carol", "carol", "pro"),
    ("demo-pro-dave", "dave", "pro"),
    ("demo-internal-jobs", "jobs", "internal"),
];

/// Returns a reader of rules with `key: { custom: customer }` and `tier_from: { custom: plan }`.
pub(crate) fn reader() -> RuleSetReader {
    // An API key that nobody has is absent, so made-up keys are all counted by the caller's address.
    let names: HashMap<Key, &str> = CUSTOMERS
        .into_iter()
        .map(|(api_key, name, _)| (Key::secret(api_key), name))
        .collect();
    let customer =
        ApiKey::header("x-api-key").and_then(move |api_key| names.get(&api_key).map(Key::new));
    let plans: HashMap<Key, &str> = CUSTOMERS
        .into_iter()
        .map(|(_, name, plan)| (Key::new(name), plan))
        .collect();
    let plan =
        move |_: &RequestHead, customer: &Key| plans.get(customer).map(|&plan| plan.to_owned());
    RuleSetReader::default()
        .extractor("customer", customer)
        .tier_name("plan", plan)
}
