{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* The labels by which a release selects its pods. */ -}}
{{- define "kvcache.selector" -}}
app.kubernetes.io/name: kvcache
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "kvcache.labels" -}}
{{ include "kvcache.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
{{- define "kvcache.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end }}
