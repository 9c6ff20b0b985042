//! A profile of callgrind, by layers.

use std::collections::{BTreeMap, HashMap};

/// What was counted.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    /// Instructions of each crate; of what it inlines from the standard library, too.
    pub(crate) layers: BTreeMap<String, u64>,
    /// Calls of memcpy and its kind.
    pub(crate) copies: u64,
    /// Calls of malloc and its kind.
    pub(crate) allocations: u64,
    /// Of the kernel.
    pub(crate) system_calls: u64,
}

/// Names that a profile gives once, with a number, and then only by number.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    /// `(12) name`, or `(12)`.
    fn name(&mut self, text: &str) -> String {
        let Some((number, name)) = text.split_once(')') else { return text.to_string() };
        match name.trim() {
            "" => self.0.get(number).cloned().unwrap_or_default(),
            name => {
                self.0.insert(number.to_string(), name.to_string());
                name.to_string()
            }
        }
    }
}

fn is_copy(function: &str) -> bool {
    ["memcpy", "memmove"].iter().any(|name| function.contains(name))
}

fn is_allocation(function: &str) -> bool {
    let plain = function.trim_start_matches('_').split(['\'', '@']).next().unwrap_or_default();
    matches!(plain, "malloc" | "calloc" | "realloc" | "posix_memalign" | "aligned_alloc")
}

/// Where a line of code belongs: to the crate of its file, or else of its function.
fn layer(file: &str, function: &str, object: &str) -> String {
    if let Some((_, path)) = file.rsplit_once("crates/")
        && let Some((name, _)) = path.split_once("/src/")
    {
        return name.to_string();
    }
    if let Some((_, rest)) = function.split_once("dafs_") {
        let name = rest.split("::").next().unwrap_or_default();
        return name.replace('_', "-");
    }
    if is_copy(function) {
        return "memcpy".into();
    }
    if object.contains("libc") || object.contains("ld-linux") {
        let memory = ["malloc", "free", "calloc", "realloc", "memalign"];
        let is_memory = memory.iter().any(|name| function.contains(name));
        return if is_memory { "malloc, free".into() } else { "libc".into() };
    }
    "other crates".into()
}

impl Profile {
    pub(crate) fn parse(text: &str) -> Profile {
        let mut profile = Profile::default();
        let (mut files, mut functions, mut objects) =
            (Names::default(), Names::default(), Names::default());
        let (mut file, mut function, mut object) = (String::new(), String::new(), String::new());
        let mut callee = String::new();
        let mut is_call = false;
        for line in text.lines() {
            match line.split_once('=') {
                Some(("fl" | "fi" | "fe", name)) => file = files.name(name),
                Some(("fn", name)) => function = functions.name(name),
                Some(("ob", name)) => object = objects.name(name),
                // Names of what is called share the numbers.
                Some(("cfi" | "cfl", name)) => drop(files.name(name)),
                Some(("cob", name)) => drop(objects.name(name)),
                Some(("cfn", name)) => callee = functions.name(name),
                Some(("calls", rest)) => {
                    let count = rest.split(' ').next().and_then(|count| count.parse().ok());
                    let count: u64 = count.unwrap_or(0);
                    if is_copy(&callee) && !is_copy(&function) {
                        profile.copies += count;
                    }
                    if is_allocation(&callee) && !is_allocation(&function) {
                        profile.allocations += count;
                    }
                    is_call = true;
                }
                // A cost: the line, how many instructions, how many system calls if any. After a call it is the callee's.
                _ if line
                    .starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) =>
                {
                    if std::mem::take(&mut is_call) {
                        continue;
                    }
                    // The first field is the line. A figure that cannot be read is no zero.
                    let fields = line.split(' ').skip(1);
                    let mut costs = fields.map(|cost| cost.parse::<u64>().expect("a number"));
                    *profile.layers.entry(layer(&file, &function, &object)).or_default() +=
                        costs.next().unwrap_or(0);
                    profile.system_calls += costs.next().unwrap_or(0);
                }
                _ => {}
            }
        }
        profile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_go_to_the_layer_of_their_line() {
        let text = "fl=(1) /x/crates/message/src/node.rs\nfn=(1) dafs_message::node::poll\n\
                    10 5\nfi=(2) /rustc/library/core/src/ptr.rs\n11 7\nfe=(3) /x/crates/fabric/src/mem.rs\n+3 2\n\
                    cfn=(2) __memcpy_avx_unaligned\ncalls=3 0\n12 900\n\
                    cfn=(3) malloc\ncalls=2 0\n12 100\n\
                    ob=(1) /lib/libc.so.6\nfl=(4) ???\nfn=(2)\n0 30 4 9\n";
        let profile = Profile::parse(text);
        let cost = |name: &str| profile.layers.get(name).copied();
        assert_eq!(cost("message"), Some(12));
        assert_eq!(cost("fabric"), Some(2));
        assert_eq!(cost("memcpy"), Some(30));
        assert_eq!((profile.copies, profile.allocations), (3, 2));
        assert_eq!(profile.system_calls, 4);
    }
}
