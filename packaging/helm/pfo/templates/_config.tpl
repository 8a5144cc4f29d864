{{- /* The configurations of both daemons. */}}

{{- /* Refuses lines of a site that repeat a table of the chart, with which the daemon would not start. */}}
{{- define "pfo.check" -}}
{{- $config := .config -}}
{{- $of := .of -}}
{{- range .tables -}}
{{- if contains (printf "[%s]" .) $config -}}
{{- fail (printf "%s.config: the chart writes [%s] itself" $of .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pfo.pfod.toml" -}}
# pfod.toml(5) of the DaemonSet. After a change, run `pfoctl reload` in each pod with `kubectl exec`.

# Each socket has a directory of its own, so that a pod can mount one socket without the others.
[sockets]
trainers = "/run/pfo/trainers/pfod.sock"
admin = "/run/pfo/admin/admin.sock"
agent = "/run/pfo/agent/agent.sock"

# Numbers, because the image may have no names for these groups.
[groups]
trainers = {{ .Values.ids.trainers | int64 | toString | quote }}
administrators = {{ .Values.ids.administrators | int64 | toString | quote }}
agent = {{ .Values.ids.agent | int64 | toString | quote }}

[paths]
subordinate_uids = "/etc/pfo/subuid"
{{- with .Values.pfod.config }}
{{- include "pfo.check" (dict "of" "pfod" "config" . "tables" (list "sockets" "groups" "paths")) }}

{{ . | trim }}
{{- end }}
{{- if .Values.pfod.letPodsIn }}

# A pod with a user namespace has groups of its own range, and is never a member of group pfo. The socket
# is open to that group only, and a GPU is leased only to a process that can open its device file: a pod
# leases what the device plugin gave it.
[[rule]]
users = ["*"]
{{- end }}
{{ end }}

{{- define "pfo.agent.toml" -}}
# pfo-agent.toml(5) of the DaemonSet. A change requires a restart of the pod. Without a fleet, SIGHUP to the
# agent applies a change outside of [metrics], too.

[sockets]
users = "/run/pfo-users/pfo-agent.sock"
admin = "/run/pfo-agent/pfo-agent-admin.sock"
pfod = "/run/pfo-pfod/agent.sock"

# Anybody who can run a command in the container as its user administers the agent.
[groups]
trainers = {{ .Values.ids.trainers | int64 | toString | quote }}
administrators = {{ .Values.ids.agent | int64 | toString | quote }}

[paths]
subordinate_uids = "/etc/pfo/subuid"
{{- if .Values.metrics.enabled }}

[metrics]
listen = "0.0.0.0:{{ .Values.metrics.port }}"
{{- end }}
{{- with .Values.fleet }}
{{- if .endpoints }}

[fleet]
endpoints = {{ .endpoints | toJson }}
name = {{ .name | quote }}
# The container writes the name of the node here.
node = ""
on_store_loss = {{ .onStoreLoss | quote }}
ca = "/etc/pfo-fleet/ca.pem"
certificate = "/etc/pfo-fleet/node.pem"
key = "/etc/pfo-fleet/node.key"
{{- end }}
{{- end }}
{{- with .Values.agent.config }}
{{- $tables := list "sockets" "groups" "paths" "metrics" "fleet" }}
{{- include "pfo.check" (dict "of" "agent" "config" . "tables" $tables) }}

{{ . | trim }}
{{- end }}
{{ end }}

{{- define "pfo.configuration" -}}
pfod.toml: |
  {{- include "pfo.pfod.toml" . | trim | nindent 2 }}
agent.toml: |
  {{- include "pfo.agent.toml" . | trim | nindent 2 }}
# Quotas count each pod's range of uids as one person.
subuid: |
  root:65536:4294836224
{{- end }}

{{- define "pfo.labels" -}}
app.kubernetes.io/name: pfo
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pfo.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}
