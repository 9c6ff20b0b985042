//! What was printed, beside what a page shows. Lines that are a URL alone are those of a server, which has other
//! addresses here: they are left out.

/// The last shown line where more follows that is not shown.
const MORE: &str = "...";

/// Each shown line was printed, in this order, and nothing else; words with digits may be others.
pub(crate) fn same(shown: &[String], printed: &str) -> Result<(), String> {
    if shown.is_empty() {
        return Ok(());
    }
    let is_compared = |line: &&str| !line.trim().is_empty() && !line.starts_with("dafs://");
    let mut lines = printed.lines().filter(is_compared);
    for expected in shown.iter().map(String::as_str).filter(is_compared) {
        if expected.trim() == MORE {
            return Ok(());
        }
        let line = lines.next().ok_or(format!("'{expected}' was not printed"))?;
        if !is_like(expected, line) {
            return Err(format!("'{expected}' is shown, '{line}' was printed"));
        }
    }
    lines.next().map_or(Ok(()), |line| Err(format!("'{line}' was printed, and is not shown")))
}

fn is_like(expected: &str, line: &str) -> bool {
    let (mut expected, mut words) = (expected.split_whitespace(), line.split_whitespace());
    loop {
        match (expected.next(), words.next()) {
            (None, None) => return true,
            (Some(expected), Some(word))
                if expected == word || has_digit(expected) && has_digit(word) => {}
            _ => return false,
        }
    }
}

fn has_digit(word: &str) -> bool {
    word.contains(|letter: char| letter.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::same;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn numbers_differ_and_nothing_else() {
        let shown = lines("-rw-r--r--  1 root  6 2026-11-20 a.txt\nhello");
        assert_eq!(same(&shown, "-rw-r--r-- 1 root 7 2027-01-02 a.txt\n\nhello\n"), Ok(()));
        assert!(same(&shown, "-rw-r--r-- 1 root 7 2027-01-02 b.txt\nhello\n").is_err());
        assert!(same(&shown, "-rw-r--r-- 1 root 7 2027-01-02 a.txt\n").is_err());
        assert!(same(&shown, "-rw-r--r-- 1 root 7 2027-01-02 a.txt\nhello\nmore\n").is_err());
        assert!(same(&shown, "-rw-r--r-- 1 root x 2027-01-02 a.txt\nhello\n").is_err());
    }

    #[test]
    fn what_is_cut_short_may_go_on() {
        assert_eq!(same(&lines("one\n..."), "one\ntwo\nthree\n"), Ok(()));
        assert!(same(&lines("two\n..."), "one\ntwo\n").is_err());
        assert_eq!(same(&[], "anything"), Ok(()));
        assert_eq!(same(&lines("dafs://[::1]/\none"), "dafs://127.0.0.1:4/\none\n"), Ok(()));
    }
}
