{{- /*
What a chart that depends on this one includes in its Deployment. Each takes the root context (`.`) and reads
.Values.stallscope of your chart; each renders what stands under one field, and nothing at all when there is nothing:

  stallscope.podLabels       metadata.labels of the pod: what the PodMonitor selects
  stallscope.podSpec         fields of the pod's spec: shareProcessNamespace
  stallscope.initContainers  items of initContainers: the hooks, then the sidecar itself
  stallscope.volumes         items of volumes
  stallscope.appEnv          items of env of the app's container: what loads the hooks
  stallscope.appVolumeMounts items of volumeMounts of the app's container
*/ -}}

{{- define "stallscope.image" -}}
{{- $v := .Values.stallscope | default .Values -}}
{{- if $v.image.digest -}}
{{ $v.image.repository }}@{{ $v.image.digest }}
{{- else -}}
{{ $v.image.repository }}:{{ $v.image.tag }}
{{- end -}}
{{- end -}}

{{- define "stallscope.podLabels" -}}
stallscope: enabled
{{- end -}}

{{- define "stallscope.podSpec" -}}
{{- $v := .Values.stallscope | default .Values -}}
{{- if ne $v.rights "none" -}}
shareProcessNamespace: true
{{- end -}}
{{- end -}}

{{- define "stallscope.initContainers" -}}
{{- $v := .Values.stallscope | default .Values -}}
{{- if $v.hooks.enabled -}}
- name: stallscope-hooks
  image: {{ include "stallscope.image" . | quote }}
  {{- with $v.image.pullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  command: ["cp", "-r", "/opt/stallscope/hooks/.", "/hooks"]
  volumeMounts:
    - name: stallscope-hooks
      mountPath: /hooks
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop:
        - ALL
  resources:
    requests:
      cpu: 10m
      memory: 16Mi
    limits:
      memory: 64Mi
{{ end -}}
{{ include "stallscope.sidecar" . }}
{{- end -}}

{{- define "stallscope.sidecar" -}}
{{- $v := .Values.stallscope | default .Values -}}
{{- if semverCompare "<1.29.0-0" .Capabilities.KubeVersion.Version -}}
{{- fail (printf "stallscope: native sidecars need Kubernetes 1.29, this is %s (with `helm template`: --kube-version)" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
- name: stallscope
  image: {{ include "stallscope.image" . | quote }}
  {{- with $v.image.pullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  # A native sidecar: it runs beside the app, does not keep a Job alive, and ends after the app.
  restartPolicy: Always
  {{- with include "stallscope.env" . | trim }}
  env:
    {{- . | nindent 4 }}
  {{- end }}
  ports:
    - name: stallscope
      containerPort: 9768
  {{- if or $v.database.secretName $v.extraVolumeMounts }}
  volumeMounts:
    {{- if $v.database.secretName }}
    - name: stallscope-database
      mountPath: /run/secrets/stallscope
      readOnly: true
    {{- end }}
    {{- with $v.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- if eq $v.rights "capabilities" }}
    # As another user than root the capabilities would have no effect: Kubernetes sets no ambient ones.
    runAsUser: 0
    runAsGroup: 0
    runAsNonRoot: false
    {{- else }}
    runAsNonRoot: true
    {{- with $v.app.runAsUser }}
    runAsUser: {{ int64 . }}
    {{- end }}
    {{- with $v.app.runAsGroup }}
    runAsGroup: {{ int64 . }}
    {{- end }}
    {{- end }}
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    seccompProfile:
      type: RuntimeDefault
    capabilities:
      drop:
        - ALL
      {{- if eq $v.rights "capabilities" }}
      add:
        - SYS_PTRACE
        - DAC_READ_SEARCH
      {{- end }}
  resources:
    {{- toYaml $v.resources | nindent 4 }}
  # A failure restarts the sidecar alone. No startup and no readiness probe: they would act on the app's pod.
  livenessProbe:
    httpGet:
      path: /livez
      port: stallscope
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
{{- end -}}

{{- /* The settings as variables: docs/configuration.md has their names. */ -}}
{{- define "stallscope.env" -}}
{{- $v := .Values.stallscope | default .Values -}}
{{- if and (ne $v.rights "none") (not $v.app.process) -}}
{{- fail "stallscope.app.process: say the name of the app's process, or stallscope.rights: none" -}}
{{- end -}}
{{- if and (ne $v.rights "none") $v.app.process }}
- name: STALLSCOPE_APP__PROCESS
  value: {{ $v.app.process | quote }}
{{- end }}
{{- if $v.database.secretName }}
- name: STALLSCOPE_POSTGRES__TARGETS
  value: {{ printf "%s=file:/run/secrets/stallscope/%s" $v.database.name $v.database.secretKey | quote }}
{{- end }}
{{- range $section, $keys := $v.settings }}
{{- range $key, $value := $keys }}
- name: STALLSCOPE_{{ upper $section }}__{{ upper $key }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{- with $v.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "stallscope.volumes" -}}
{{- $v := .Values.stallscope | default .Values -}}
{{- if $v.hooks.enabled -}}
- name: stallscope-hooks
  emptyDir: {}
{{ end -}}
{{- if $v.database.secretName -}}
- name: stallscope-database
  secret:
    secretName: {{ $v.database.secretName }}
{{- end -}}
{{- end -}}

{{- define "stallscope.appEnv" -}}
{{- $v := .Values.stallscope | default .Values -}}
{{- if $v.hooks.enabled -}}
- name: STALLSCOPE_HOOK
  value: udp:127.0.0.1:9769
- name: PYTHONPATH
  value: /opt/stallscope/hooks/python/auto
- name: NODE_OPTIONS
  value: --require=/opt/stallscope/hooks/node/stallscope-hook.js
{{- end -}}
{{- end -}}

{{- define "stallscope.appVolumeMounts" -}}
{{- $v := .Values.stallscope | default .Values -}}
{{- if $v.hooks.enabled -}}
- name: stallscope-hooks
  mountPath: /opt/stallscope/hooks
  readOnly: true
{{- end -}}
{{- end -}}
