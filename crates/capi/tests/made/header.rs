//! The header, from the functions and structures of the sources.

/// As it should be.
pub fn header() -> String {
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        cpp_compat: true,
        include_guard: Some("DAFS_H".into()),
        header: Some(
            "/* libdafs: a DAFS-style interface to DAFS servers. Manual: libdafs(3).\n   \
             Made from crates/capi/src by its test `made`: do not edit. */"
                .into(),
        ),
        no_includes: true,
        sys_includes: vec!["stddef.h".into(), "stdint.h".into()],
        usize_is_size_t: true,
        documentation_style: cbindgen::DocumentationStyle::C,
        documentation_length: cbindgen::DocumentationLength::Short,
        style: cbindgen::Style::Both,
        line_length: 400,
        ..cbindgen::Config::default()
    };
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = super::sources().iter().fold(builder, |builder, path| builder.with_src(path));
    let mut text = Vec::new();
    builder.generate().expect("the sources are parsed").write(&mut text);
    let text = String::from_utf8(text).expect("text");
    wrapped(&plain(&short_comments(&text)))
}

/// A comment of one line takes one line.
fn short_comments(text: &str) -> String {
    let mut out = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim() == "/*"
            && let Some(words) = lines.next()
        {
            let indent = &line[..line.len() - 2];
            out.push(format!("{indent}/* {} */", words.trim()));
            assert_eq!(lines.next().map(str::trim), Some("*/"), "{words}: a comment of one line");
        } else {
            out.push(line.to_owned());
        }
    }
    out.join("\n") + "\n"
}

/// Types of pointers that only Rust needs become what they are: `Out_u64` is `uint64_t *`.
fn plain(text: &str) -> String {
    let mut names: Vec<(String, String)> = Vec::new();
    let mut out: Vec<String> = Vec::new();
    for line in text.lines() {
        let pointer = line.strip_prefix("typedef ").and_then(|rest| rest.strip_suffix(';'));
        match pointer.and_then(|rest| rest.rsplit_once('*')) {
            Some((base, name)) if !line.contains('(') => {
                names.push((name.into(), format!("{base}*")));
                // With its comment, and the empty line.
                out.truncate(out.len() - 2);
            }
            _ => out.push(line.into()),
        }
    }
    for line in out.iter_mut().filter(|line| !line.trim_start().starts_with("/*")) {
        for (name, base) in &names {
            for before in ["(", " "] {
                *line = line.replace(&format!("{before}{name} "), &format!("{before}{base}"));
            }
        }
        *line = line.replace("Callback", "dap_callback_t");
        if !line.starts_with("typedef struct") {
            *line = line.replace("struct dap_", "dap_");
        }
    }
    out.join("\n") + "\n"
}

/// Long declarations get a line for each argument.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if line.len() > 100 && line.ends_with(");") {
            let at = line.find('(').expect("arguments") + 1;
            out.push_str(&line.replace(", ", &format!(",\n{}", " ".repeat(at))));
        } else {
            out.push_str(line);
        }
        out.push('\n');
    }
    out
}
