//! The screen of `dafs top`.

use std::net::SocketAddr;
use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table};

use super::rates::{Rates, Sample, SessionRates, Sort, percent};
use crate::text;

/// Samples in the chart of requests.
const HISTORY: usize = 240;

const HELP: &str = "q, Esc   end\n\
    s        sort sessions by the next column\n\
    space    pause, and go on\n\
    ?        this help, and back\n\n\
    Rates are means over the interval. hits: reads that the cache answered.\n\
    dirty: written, not yet in the server's file system; writers wait at the bound.\n\
    store: what goes between cache and file system. cpu: processors kept busy.\n\
    latency: from the arrival of a request to its reply, in the server.\n\
    without a request: reads of what is cached, by a reference or by clients themselves,\n\
    who tell of those now and then; stale: of blocks that were elsewhere by then.\n\
    data plane: what of cpu the server's answers to such reads take, estimated by samples.";

/// What a key asks of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    End,
    GoOn,
}

/// What is shown, and how.
pub struct Screen {
    admin: SocketAddr,
    interval: Duration,
    sort: Sort,
    last: Sample,
    rates: Rates,
    requests: Vec<u64>,
    paused: bool,
    help: bool,
    /// Why there is no newer sample.
    trouble: Option<String>,
}

impl Screen {
    pub fn new(admin: SocketAddr, interval: Duration, sort: Sort, first: Sample) -> Screen {
        let rates = Rates::between(&first, &first, sort);
        let (requests, trouble) = (Vec::new(), None);
        let (paused, help, last) = (false, false, first);
        Screen { admin, interval, sort, last, rates, requests, paused, help, trouble }
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// A new sample, or why there is none.
    pub fn take(&mut self, sample: Result<Sample, String>) {
        match sample {
            Ok(sample) => {
                self.rates = Rates::between(&self.last, &sample, self.sort);
                self.last = sample;
                self.trouble = None;
                if self.requests.len() == HISTORY {
                    self.requests.remove(0);
                }
                self.requests.push(self.rates.requests as u64);
            }
            Err(text) => self.trouble = Some(text),
        }
    }

    pub fn key(&mut self, key: KeyEvent) -> Key {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Key::End,
            KeyCode::Char('q') => return Key::End,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc => return Key::End,
            KeyCode::Char('s') => {
                self.sort = match self.sort {
                    Sort::Requests => Sort::Read,
                    Sort::Read => Sort::Written,
                    Sort::Written => Sort::Opens,
                    Sort::Opens => Sort::User,
                    Sort::User => Sort::Requests,
                };
                self.rates.sort(self.sort);
            }
            KeyCode::Char(' ' | 'p') => self.paused = !self.paused,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            _ => {}
        }
        Key::GoOn
    }

    pub fn draw(&self, frame: &mut Frame<'_>) {
        let latency_rows = self.rates.latency.len().min(8) as u16;
        let optimistic_rows = u16::from(self.rates.optimistic().is_some());
        let [head, load, optimistic, sizes, latency, sessions, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(5),
            Constraint::Length(optimistic_rows),
            Constraint::Length(3),
            Constraint::Length(latency_rows + 3),
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_head(frame, head);
        if self.help {
            let rest = load.union(sizes).union(latency).union(sessions);
            frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title("help")), rest);
        } else {
            self.draw_load(frame, load);
            let text = self.rates.optimistic().map(|text| format!(" without a request: {text}"));
            frame.render_widget(Paragraph::new(text.unwrap_or_default()), optimistic);
            self.draw_sizes(frame, sizes);
            self.draw_latency(frame, latency);
            self.draw_sessions(frame, sessions);
        }
        let keys = "q end   s sort   space pause   ? help";
        frame.render_widget(Paragraph::new(keys).dim(), foot);
    }

    fn draw_head(&self, frame: &mut Frame<'_>, area: Rect) {
        let rates = &self.rates;
        let state = match (&self.trouble, self.paused) {
            (Some(text), _) => format!("  no answer: {text}").red().bold(),
            (None, true) => "  paused".yellow().bold(),
            (None, false) => format!("  every {:?}", self.interval).into(),
        };
        let server = format!(
            "dafs {} process {}, up {} s, http://{}/",
            rates.version, rates.pid, rates.uptime_seconds, self.admin
        );
        frame.render_widget(Paragraph::new(Line::from(vec![server.bold(), state])), area);
    }

    fn draw_load(&self, frame: &mut Frame<'_>, area: Rect) {
        let rates = &self.rates;
        let [left, right] =
            Layout::horizontal([Constraint::Length(48), Constraint::Min(10)]).areas(area);
        let lines = vec![
            Line::from(format!(
                "read {:>7}/s   written {:>7}/s",
                text::human(rates.read_bytes as u64),
                text::human(rates.written_bytes as u64)
            )),
            Line::from(format!(
                "store reads {:>5.0}/s {:>5}/s  writes {:>5.0}/s {:>5}/s",
                rates.store_reads,
                text::human(rates.store_read_bytes as u64),
                rates.store_writes,
                text::human(rates.store_written_bytes as u64)
            )),
            Line::from(format!(
                "hits {:>6}   cpu {:.2}   open files {}",
                percent(rates.hit_ratio),
                rates.cpu,
                rates.opens
            )),
        ];
        frame.render_widget(Paragraph::new(lines).block(Block::bordered().title("load")), left);
        let title = format!("requests {:.0}/s", rates.requests);
        let width = usize::from(right.width.saturating_sub(2));
        let shown = &self.requests[self.requests.len().saturating_sub(width)..];
        let chart = Sparkline::default().data(shown).block(Block::bordered().title(title));
        frame.render_widget(chart, right);
    }

    fn draw_sizes(&self, frame: &mut Frame<'_>, area: Rect) {
        let rates = &self.rates;
        let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(area);
        gauge(frame, left, "arena", rates.cached_bytes, rates.arena_bytes);
        gauge(frame, right, "dirty", rates.dirty_bytes, rates.dirty_bytes_max);
    }

    fn draw_latency(&self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.rates.latency.iter().map(|kind| {
            Row::new([
                kind.kind.clone(),
                format!("{:.0}", kind.requests),
                format!("{:.0}", kind.mean_us),
                format!("< {:.0}", kind.p50_us),
                format!("< {:.0}", kind.p99_us),
            ])
        });
        let widths = [14, 10, 10, 10, 10].map(Constraint::Length);
        let head = Row::new(["kind", "per second", "mean us", "half", "99%"]).style(heading());
        let table = Table::new(rows, widths).header(head);
        frame.render_widget(table.block(Block::bordered().title("latency")), area);
    }

    fn draw_sessions(&self, frame: &mut Frame<'_>, area: Rect) {
        let rates = &self.rates;
        // A column where there is something to show.
        let has_told = rates.sessions.iter().any(SessionRates::is_told);
        let rows = rates.sessions.iter().map(|session| {
            let hits = has_told.then(|| format!("{:.0}", session.optimistic_hits));
            let cells = [
                session.peer.clone(),
                session.client.chars().take(8).collect(),
                session.uid.to_string(),
                format!("{:.0}", session.requests),
                format!("{}/s", text::human(session.read_bytes as u64)),
                format!("{}/s", text::human(session.written_bytes as u64)),
                session.opens.to_string(),
            ];
            Row::new(cells.into_iter().chain(hits))
        });
        let column = |name: &'static str, sort| {
            if self.sort == sort { format!("{name}*") } else { name.to_owned() }
        };
        let head = [
            "from".to_owned(),
            "client".to_owned(),
            column("user", Sort::User),
            column("requests/s", Sort::Requests),
            column("read", Sort::Read),
            column("written", Sort::Written),
            column("open", Sort::Opens),
        ];
        let head = head.into_iter().chain(has_told.then(|| "no request/s".to_owned()));
        let head = Row::new(head).style(heading());
        let widths = [24, 9, 8, 12, 10, 10, 6].into_iter().chain(has_told.then_some(12));
        let widths = widths.map(Constraint::Length);
        let title = format!("{} sessions", rates.session_count);
        let table = Table::new(rows, widths).header(head).block(Block::bordered().title(title));
        frame.render_widget(table, area);
    }
}

fn heading() -> Style {
    Style::new().bold()
}

fn gauge(frame: &mut Frame<'_>, area: Rect, name: &'static str, used: u64, of: u64) {
    let ratio = if of == 0 { 0.0 } else { (used as f64 / of as f64).clamp(0.0, 1.0) };
    let label = format!("{} of {}", text::human(used), text::human(of));
    let gauge = Gauge::default().ratio(ratio).label(label).block(Block::bordered().title(name));
    frame.render_widget(gauge, area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::rates::tests::sample;
    use super::*;

    fn shown(screen: &Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("terminal");
        terminal.draw(|frame| screen.draw(frame)).expect("drawn");
        terminal.backend().to_string()
    }

    fn screen() -> Screen {
        let admin = SocketAddr::from(([127, 0, 0, 1], 9100));
        let mut screen =
            Screen::new(admin, Duration::from_secs(1), Sort::Requests, sample(10, 300));
        screen.take(Ok(sample(12, 900)));
        screen
    }

    fn press(screen: &mut Screen, code: KeyCode) -> Key {
        screen.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn a_sample_is_shown_with_its_rates() {
        let text = shown(&screen(), 100, 30);
        for part in [
            "http://127.0.0.1:9100/",
            "requests 300/s",
            "hits  75.0%",
            "cpu 0.30",
            "256M of 1.0G",
            "4.0K of 512M",
            "cached_reads",
            "127.0.0.1:5",
            "2 sessions",
            "without a request: hits 5900/s  stale 7/s  refused 30/s  references told 42  data plane cpu 0.12",
            "no request/s",
            "4600",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
    }

    #[test]
    fn keys_sort_pause_help_and_end() {
        let mut screen = screen();
        assert!(shown(&screen, 100, 30).contains("requests/s*"));
        assert_eq!(press(&mut screen, KeyCode::Char('s')), Key::GoOn);
        let text = shown(&screen, 100, 30);
        assert!(text.contains("read*"));
        let reader = text.find("127.0.0.1:5").expect("the reader");
        assert!(reader < text.find("[2Jx").expect("the other"), "the one who reads is first");
        press(&mut screen, KeyCode::Char(' '));
        assert!(screen.is_paused() && shown(&screen, 100, 30).contains("paused"));
        press(&mut screen, KeyCode::Char('?'));
        assert!(shown(&screen, 100, 30).contains("sort sessions by the next column"));
        assert_eq!(press(&mut screen, KeyCode::Esc), Key::GoOn);
        assert_eq!(press(&mut screen, KeyCode::Esc), Key::End);
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Key::End);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.key(interrupt), Key::End);
    }

    #[test]
    fn a_lost_server_is_told_and_what_was_seen_stays() {
        let mut screen = screen();
        screen.take(Err("connection refused".into()));
        let text = shown(&screen, 120, 30);
        assert!(text.contains("no answer: connection refused") && text.contains("requests 300/s"));
        screen.take(Ok(sample(14, 900)));
        assert!(!shown(&screen, 120, 30).contains("no answer"));
    }

    #[test]
    fn any_size_of_terminal_will_do() {
        let mut screen = screen();
        (0..1000).for_each(|second| screen.take(Ok(sample(20 + second, 900 + second))));
        for (width, height) in [(1, 1), (20, 5), (40, 12), (300, 100)] {
            shown(&screen, width, height);
        }
    }
}
