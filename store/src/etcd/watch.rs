//! A job in etcd: all of it at one revision, and every change from the next one on.

use std::collections::VecDeque;

use etcd_client::{Client, EventType, GetOptions, ResponseHeader, WatchOptions, WatchStream};
use pfo_fleet::{Change, Shared};

use super::ask::ask;
use super::keys::Keys;
use crate::error::StoreError;
use crate::verbs::{News, WatchedJob};

/// A job in etcd that is watched.
#[derive(Debug)]
pub struct EtcdJob {
    keys: Keys,
    stream: WatchStream,
    news: VecDeque<News>,
}

impl EtcdJob {
    pub(super) async fn watch(client: &Client, keys: Keys) -> Result<Self, StoreError> {
        let all = GetOptions::new().with_prefix();
        let get = || {
            let (mut kv, all) = (client.kv_client(), all.clone());
            let prefix = keys.prefix();
            async move { kv.get(prefix, Some(all)).await }
        };
        let mut found = ask(get).await?;
        let after = found.header().map_or(0, ResponseHeader::revision).saturating_add(1);
        let mut changes: Vec<_> = found
            .take_kvs()
            .iter()
            .filter_map(|kv| keys.change(kv.key(), Some(kv.value())))
            .collect();
        // What is said of a swap counts only once there is the swap.
        changes.sort_by_key(|change| !matches!(change, Change::Proposal(..)));
        let mut shared = Shared::default();
        changes.into_iter().for_each(|change| shared.apply(change));
        let options = WatchOptions::new().with_prefix().with_start_revision(after);
        let watch = || {
            let (mut watches, options) = (client.watch_client(), options.clone());
            let prefix = keys.prefix();
            async move { watches.watch(prefix, Some(options)).await }
        };
        let stream = ask(watch).await?;
        Ok(Self { keys, stream, news: [News::Snapshot(shared)].into() })
    }
}

impl WatchedJob for EtcdJob {
    async fn next(&mut self) -> Result<News, StoreError> {
        loop {
            if let Some(news) = self.news.pop_front() {
                return Ok(news);
            }
            let ended = || StoreError::Away("the watch ended".into());
            let message = self.stream.message().await?.ok_or_else(ended)?;
            if message.canceled() {
                return Err(StoreError::Away(message.cancel_reason().to_owned()));
            }
            for event in message.events() {
                let Some(kv) = event.kv() else { continue };
                let value = (event.event_type() == EventType::Put).then(|| kv.value());
                let change = self.keys.change(kv.key(), value);
                self.news.extend(change.map(News::Changed));
            }
        }
    }
}
