//! What the keys do. Pure: from a key and the rows that are shown to the next state.

use super::sheet::JobKey;

/// A key, as far as any is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    BackTab,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C.
    Interrupt,
}

/// The lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Gpus,
    Jobs,
    Ranks,
    /// The ranks of the job that is looked into.
    RanksOfJob,
}

/// What is shown over the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Lists,
    Help,
    Attention,
}

/// By what a list is sorted: by nothing, in the order in which `pfod` lists things.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: Option<usize>,
    pub(super) reversed: bool,
}

/// The selected row and the order of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) selected: Option<String>,
    pub(super) sort: Sort,
}

/// What happens after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    Quit,
    Interrupt,
}

/// The list that is shown, as the keys know it.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// What its rows are of, in order, and the job of each.
    pub(super) rows: Vec<(String, Option<JobKey>)>,
    /// How many columns it can be sorted by.
    pub(super) columns: usize,
    /// Rows of a page.
    pub(super) page: usize,
}

/// What is shown, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) page: Page,
    pub(super) list: List,
    /// The job that is looked into, while `list` is its ranks.
    pub(super) job: Option<JobKey>,
    /// Where Escape leads to from there.
    back: List,
    pub(super) filter: String,
    /// Whether letters go into the filter.
    pub(super) typing: bool,
    /// Lines of a text that are above the screen.
    pub(super) scroll: u16,
    places: [Place; 4],
}

impl Default for State {
    fn default() -> Self {
        Self {
            page: Page::Lists,
            list: List::Gpus,
            job: None,
            back: List::Gpus,
            filter: String::new(),
            typing: false,
            scroll: 0,
            places: Default::default(),
        }
    }
}

/// The longest filter, in characters.
const LONGEST_FILTER: usize = 40;

impl State {
    /// Where one is in a list.
    pub(super) fn place(&self, list: List) -> &Place {
        &self.places[list as usize]
    }

    fn place_here(&mut self) -> &mut Place {
        &mut self.places[self.list as usize]
    }

    /// Takes a key.
    pub(super) fn press(&mut self, key: Key, listing: &Listing) -> Flow {
        match key {
            Key::Interrupt => return Flow::Interrupt,
            _ if self.typing => self.type_key(key),
            Key::Char('q') => return Flow::Quit,
            _ if self.page != Page::Lists => self.press_in_text(key),
            key => self.press_in_list(key, listing),
        }
        Flow::Continue
    }

    fn type_key(&mut self, key: Key) {
        match key {
            Key::Char(c) if self.filter.chars().count() < LONGEST_FILTER && !c.is_control() => {
                self.filter.push(c);
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Enter => self.typing = false,
            Key::Escape => {
                self.filter.clear();
                self.typing = false;
            }
            _ => {}
        }
    }

    fn press_in_text(&mut self, key: Key) {
        match key {
            Key::Down | Key::Char('j') => self.scroll = self.scroll.saturating_add(1),
            Key::Up | Key::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            Key::PageDown | Key::Char(' ') => self.scroll = self.scroll.saturating_add(10),
            Key::PageUp => self.scroll = self.scroll.saturating_sub(10),
            Key::Home => self.scroll = 0,
            Key::Escape | Key::Enter | Key::Char('?' | 'h' | 'a') => self.page = Page::Lists,
            _ => {}
        }
    }

    fn press_in_list(&mut self, key: Key, listing: &Listing) {
        match key {
            Key::Char('?' | 'h') => self.open(Page::Help),
            Key::Char('a') => self.open(Page::Attention),
            Key::Char('1') => self.go(List::Gpus),
            Key::Char('2') => self.go(List::Jobs),
            Key::Char('3') => self.go(List::Ranks),
            Key::Tab => self.go(self.neighbour([List::Jobs, List::Ranks, List::Gpus])),
            Key::BackTab => self.go(self.neighbour([List::Ranks, List::Gpus, List::Jobs])),
            Key::Char('/') => self.typing = true,
            Key::Char('s' | '>') | Key::Right => self.sort_on(listing.columns, true),
            Key::Char('S' | '<') | Key::Left => self.sort_on(listing.columns, false),
            Key::Char('r') => {
                let sort = &mut self.place_here().sort;
                sort.reversed = !sort.reversed;
            }
            Key::Enter => self.look_into(listing),
            Key::Escape if self.list == List::RanksOfJob => self.go(self.back),
            Key::Escape => self.filter.clear(),
            _ => self.select(key, listing),
        }
    }

    fn open(&mut self, page: Page) {
        self.page = page;
        self.scroll = 0;
    }

    fn go(&mut self, list: List) {
        self.list = list;
        self.job = None;
    }

    fn neighbour(&self, neighbours: [List; 3]) -> List {
        let here = if self.list == List::RanksOfJob { self.back } else { self.list };
        neighbours[here as usize]
    }

    /// Sorts by the next column or the one before it, or by nothing between the last and the first.
    fn sort_on(&mut self, columns: usize, forward: bool) {
        let sort = &mut self.place_here().sort;
        sort.column = match (sort.column, forward) {
            (None, true) => Some(0),
            (None, false) => columns.checked_sub(1),
            (Some(column), true) => Some(column + 1).filter(|next| *next < columns),
            (Some(column), false) => column.checked_sub(1),
        };
    }

    fn look_into(&mut self, listing: &Listing) {
        let selected = self.place(self.list).selected.as_ref();
        let row = listing.rows.iter().find(|(id, _)| Some(id) == selected);
        let Some((_, Some(job))) = row.or(listing.rows.first()) else { return };
        if self.list != List::RanksOfJob {
            self.back = self.list;
            self.list = List::RanksOfJob;
            self.job = Some(job.clone());
            *self.place_here() = Place { sort: self.place_here().sort, selected: None };
        }
    }

    fn select(&mut self, key: Key, listing: &Listing) {
        let Some(last) = listing.rows.len().checked_sub(1) else { return };
        let selected = self.place(self.list).selected.as_ref();
        let here = selected.and_then(|id| listing.rows.iter().position(|(row, _)| row == id));
        let from = here.unwrap_or(0);
        let to = match key {
            Key::Down | Key::Char('j') => here.map_or(0, |here| here + 1),
            Key::Up | Key::Char('k') => from.saturating_sub(1),
            Key::PageDown | Key::Char(' ') => from + listing.page.max(1),
            Key::PageUp => from.saturating_sub(listing.page.max(1)),
            Key::Home => 0,
            Key::End => last,
            _ => return,
        };
        self.place_here().selected = Some(listing.rows[to.min(last)].0.clone());
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Uid;

    use super::*;

    fn listing(rows: usize) -> Listing {
        let job = (Uid(7), "j".parse().unwrap());
        let row = |number| (format!("row {number}"), Some(job.clone()));
        Listing { rows: (0..rows).map(row).collect(), columns: 3, page: 4 }
    }

    fn pressed(keys: &[Key], rows: usize) -> State {
        let mut state = State::default();
        for key in keys {
            assert_eq!(state.press(*key, &listing(rows)), Flow::Continue);
        }
        state
    }

    fn selected(keys: &[Key], rows: usize) -> Option<String> {
        let state = pressed(keys, rows);
        state.place(state.list).selected.clone()
    }

    #[test]
    fn the_selection_moves_by_rows_and_pages_and_stays_in_the_list() {
        use Key::{Down, End, Home, PageDown, PageUp, Up};
        assert_eq!(selected(&[Down, Down], 9).unwrap(), "row 1");
        assert_eq!(selected(&[Down, PageDown, PageDown, PageDown], 9).unwrap(), "row 8");
        assert_eq!(selected(&[End, PageUp, Up], 9).unwrap(), "row 3");
        assert_eq!(selected(&[End, Home, Up], 9).unwrap(), "row 0");
        assert_eq!(selected(&[Down, PageDown, End], 0), None);
    }

    #[test]
    fn a_row_that_is_gone_leaves_the_selection_at_the_beginning() {
        let mut state = pressed(&[Key::End], 9);
        assert_eq!(state.press(Key::Down, &listing(3)), Flow::Continue);
        assert_eq!(state.place(List::Gpus).selected.as_deref(), Some("row 0"));
    }

    #[test]
    fn sorting_visits_every_column_and_none() {
        let by = |keys: &str| {
            let keys: Vec<Key> = keys.chars().map(Key::Char).collect();
            pressed(&keys, 1).place(List::Gpus).sort
        };
        assert_eq!(by("s").column, Some(0));
        assert_eq!(by("sss").column, Some(2));
        assert_eq!(by("ssss").column, None);
        assert_eq!(by("S").column, Some(2));
        assert_eq!(by("sS").column, None);
        assert!(by("sr").reversed && !by("srr").reversed);
    }

    #[test]
    fn letters_go_into_the_filter_while_it_is_typed_and_quit_afterwards() {
        let mut state = pressed(&[Key::Char('/'), Key::Char('q'), Key::Char('?')], 1);
        assert_eq!((state.filter.as_str(), state.page), ("q?", Page::Lists));
        assert_eq!(state.press(Key::Backspace, &listing(1)), Flow::Continue);
        assert_eq!(state.press(Key::Enter, &listing(1)), Flow::Continue);
        assert_eq!(state.filter, "q");
        assert_eq!(state.press(Key::Char('q'), &listing(1)), Flow::Quit);
        assert_eq!(state.press(Key::Escape, &listing(1)), Flow::Continue);
        assert_eq!(state.filter, "");
    }

    #[test]
    fn ctrl_c_interrupts_wherever_one_is() {
        for keys in [&[][..], &[Key::Char('/')], &[Key::Char('?')], &[Key::Enter]] {
            assert_eq!(pressed(keys, 2).press(Key::Interrupt, &listing(2)), Flow::Interrupt);
        }
    }

    #[test]
    fn escape_leads_from_a_job_to_the_list_it_was_entered_from() {
        let state = pressed(&[Key::Char('2'), Key::Enter], 2);
        assert_eq!((state.list, state.job.is_some()), (List::RanksOfJob, true));
        let state = pressed(&[Key::Char('2'), Key::Enter, Key::Enter, Key::Escape], 2);
        assert_eq!((state.list, state.job), (List::Jobs, None));
    }

    #[test]
    fn a_row_without_a_job_leads_nowhere() {
        let mut state = State::default();
        let nobody = Listing { rows: vec![("gpu".to_owned(), None)], columns: 1, page: 1 };
        assert_eq!(state.press(Key::Enter, &nobody), Flow::Continue);
        assert_eq!(state, State::default());
    }

    #[test]
    fn a_text_is_scrolled_and_left() {
        let state = pressed(&[Key::Char('?'), Key::Down, Key::PageDown, Key::Up], 1);
        assert_eq!((state.page, state.scroll), (Page::Help, 10));
        assert_eq!(pressed(&[Key::Char('?'), Key::Escape], 1).page, Page::Lists);
        assert_eq!(pressed(&[Key::Char('a'), Key::Up], 1).scroll, 0);
    }
}
