//! Pages of the manual, section 3, from the documentation of the functions.

use std::fmt::Write;

/// Of the page that tells of all.
const OVERVIEW: &str = include_str!("libdafs.txt");

/// The names that a header declares as functions.
pub fn functions(header: &str) -> Vec<String> {
    prototypes(header).into_iter().map(|(name, _)| name).collect()
}

/// Names and declarations.
fn prototypes(header: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for statement in header.split(';') {
        // Without comments and lines for the preprocessor.
        let text = statement.rsplit("*/").next().unwrap_or_default();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let text = lines.collect::<Vec<_>>().join("\n");
        let Some((before, _)) = text.split_once('(') else { continue };
        let name = before.rsplit([' ', '*', '\n']).next().unwrap_or_default();
        if name.starts_with("dap_") && !text.contains("typedef") && !text.contains('{') {
            found.push((name.to_owned(), format!("{};", text.trim())));
        }
    }
    found
}

struct Function {
    name: String,
    /// Paragraphs; the first one is the summary.
    text: Vec<String>,
}

/// The exported functions of all sources, with their documentation.
fn documented() -> Vec<Function> {
    let mut found = Vec::new();
    for path in super::sources() {
        let source = std::fs::read_to_string(&path).expect("source");
        let (mut text, mut exported) = (vec![String::new()], false);
        for line in source.lines() {
            if let Some(words) = line.strip_prefix("///") {
                match words.trim() {
                    "" => text.push(String::new()),
                    words => {
                        let last = text.last_mut().expect("never empty");
                        if !last.is_empty() {
                            last.push(' ');
                        }
                        last.push_str(words);
                    }
                }
            } else if line.ends_with("(no_mangle)]") {
                exported = true;
            } else {
                if let (true, Some(rest)) = (exported, line.strip_prefix("pub extern \"C\" fn ")) {
                    let (name, _) = rest.split_once('(').expect("arguments");
                    found.push(Function { name: name.into(), text: text.clone() });
                }
                (text, exported) = (vec![String::new()], false);
            }
        }
    }
    found
}

/// Text for the formatter: nothing in it is a request.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

fn title(name: &str) -> String {
    format!(
        ".\\\" Made from crates/capi by its test `made`: do not edit.\n.TH {} 3 \"\" \"libdafs {}\" \"DAFS\"\n",
        name.to_uppercase(),
        env!("CARGO_PKG_VERSION")
    )
}

fn synopsis(declaration: &str) -> String {
    format!(".SH SYNOPSIS\n.nf\n.B #include <dafs.h>\n.PP\n{}\n.fi\n", escaped(declaration))
}

fn page(function: &Function, declaration: &str) -> String {
    let mut out = title(&function.name);
    let (summary, rest) = function.text.split_first().expect("a summary");
    let name = &function.name;
    writeln!(out, ".SH NAME\n{name} \\- {}", escaped(summary)).expect("text");
    out.push_str(&synopsis(declaration));
    let (last, description) = rest.split_last().expect("what it returns");
    let returns = last.strip_prefix("Returns ").expect("the last paragraph says what it returns");
    out.push_str(".SH DESCRIPTION\n");
    let paragraphs: Vec<String> = description.iter().map(|text| escaped(text)).collect();
    writeln!(out, "{}", paragraphs.join("\n.PP\n")).expect("text");
    writeln!(out, ".SH RETURN VALUE\nReturns {}", escaped(returns)).expect("text");
    out.push_str(".SH SEE ALSO\n.BR libdafs (3)\n");
    out
}

fn overview(functions: &[Function]) -> String {
    let mut out = title("libdafs");
    for line in OVERVIEW.lines() {
        match line.strip_prefix("# ") {
            Some(heading) => writeln!(out, ".SH {heading}").expect("text"),
            None if line.is_empty() => out.push_str(".PP\n"),
            None => writeln!(out, "{}", escaped(line)).expect("text"),
        }
    }
    out.push_str(".SH FUNCTIONS\n");
    for function in functions {
        let summary = function.text.first().map_or("", String::as_str);
        writeln!(out, ".TP\n.BR {} (3)\n{}", function.name, escaped(summary)).expect("text");
    }
    out
}

/// File names and contents.
pub fn pages(header: &str) -> Vec<(String, String)> {
    let functions = documented();
    let declarations = prototypes(header);
    let mut pages = vec![("libdafs.3".to_owned(), overview(&functions))];
    for function in &functions {
        let declared = declarations.iter().find(|(name, _)| *name == function.name);
        let (_, declaration) = declared.unwrap_or_else(|| panic!("{}", function.name));
        pages.push((format!("{}.3", function.name), page(function, declaration)));
    }
    pages
}
