//! The page that is served: made when somebody asks, and for a second the same for everybody. So the
//! number of requests decides neither what `pfod` is asked nor what is kept in memory.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::known::Known;
use super::page::{self, Format};
use crate::front::Services;
use crate::pfod::Questions;

/// How old a page may be.
const RECENT: Duration = Duration::from_secs(1);

/// The newest page.
#[derive(Debug)]
pub(super) struct Pages {
    services: Arc<Services>,
    questions: Questions,
    newest: Mutex<Option<Page>>,
}

#[derive(Clone, Debug)]
struct Page {
    made_at: Instant,
    openmetrics: Bytes,
    classic: Bytes,
}

impl Pages {
    pub(super) fn new(services: Arc<Services>) -> Self {
        let questions = Questions::to(services.pfod.clone());
        Self { services, questions, newest: Mutex::default() }
    }

    /// What is known, as text.
    pub(super) async fn now(&self, format: Format) -> Bytes {
        let mut newest = self.newest.lock().await;
        let page = match newest.take() {
            Some(page) if page.made_at.elapsed() < RECENT => page,
            _ => {
                let known = Arc::new(Known::now(&self.services, &self.questions).await);
                let text = |format| Bytes::from(page::write(&known, format));
                let (openmetrics, classic) = (text(Format::OpenMetrics), text(Format::Classic));
                Page { made_at: Instant::now(), openmetrics, classic }
            }
        };
        let Page { openmetrics, classic, .. } = newest.insert(page).clone();
        match format {
            Format::OpenMetrics => openmetrics,
            Format::Classic => classic,
        }
    }
}
